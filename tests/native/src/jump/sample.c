/* Functions to probe: loops, recursion, calls through pointers, tail calls, switches, structures. */

typedef unsigned long u64;
typedef unsigned char u8;

#define NOINLINE __attribute__((noinline))

NOINLINE u64 sample_fibonacci(u64 n)
{
	n %= 16;
	return n < 2 ? n : sample_fibonacci(n - 1) + sample_fibonacci(n - 2);
}

NOINLINE u64 sample_hash(const u8 *data, u64 len)
{
	u64 hash = 0xcbf29ce484222325;

	for (u64 i = 0; i < len; i++) {
		hash ^= data[i];
		hash *= 0x100000001b3;
		if (hash & 1)
			hash = hash >> 7 | hash << 57;
	}
	return hash;
}

static NOINLINE int less(u8 a, u8 b) { return a < b; }
static NOINLINE int more(u8 a, u8 b) { return a > b; }

NOINLINE u64 sample_sort(u8 *data, u64 len, u64 reverse)
{
	int (*before)(u8, u8) = reverse & 1 ? more : less;

	for (u64 i = 1; i < len; i++)
		for (u64 j = i; j > 0 && before(data[j], data[j - 1]); j--) {
			u8 kept = data[j];

			data[j] = data[j - 1];
			data[j - 1] = kept;
		}
	return len ? data[0] : 0;
}

NOINLINE u64 sample_tail(const u8 *data, u64 len)
{
	return sample_hash(data + len / 2, len - len / 2);
}

NOINLINE u64 sample_switch(u64 kind, u64 a, u64 b)
{
	switch (kind % 11) {
	case 0: return a + b;
	case 1: return a - b;
	case 2: return a * b;
	case 3: return b ? a / b : 0;
	case 4: return a << (b & 63);
	case 5: return (u64)((long)a >> (b & 63));
	case 6: return a < b ? a : b;
	case 7: return (long)a < (long)b;
	case 8: return __builtin_bswap64(a) ^ b;
	case 9: return sample_fibonacci(a) + sample_fibonacci(b);
	default: return sample_switch(a, b, kind);
	}
}

struct pair { u64 first, second; };

NOINLINE struct pair sample_pair(u64 a, u64 b)
{
	struct pair pair = { a * 3 + b, a ^ b << 5 };

	return pair;
}

NOINLINE u64 sample_pairs(u64 *data, u64 len)
{
	u64 sum = 0;

	for (u64 i = 0; i + 1 < len / 8; i += 2) {
		struct pair pair = sample_pair(data[i], data[i + 1]);

		data[i] = pair.first;
		sum += __builtin_add_overflow(pair.second, sum, &data[i + 1]);
	}
	return sum;
}

NOINLINE u64 sample_collatz(u64 n)
{
	u64 steps = 0;

	for (n &= 0xffff; n > 1 && steps < 500; steps++)
		n = n & 1 ? 3 * n + 1 : n / 2;
	return steps;
}

NOINLINE u64 sample_many(u64 a, u64 b, u64 c, u64 d, u64 e, u64 f)
{
	u64 on_stack[8] = { a, b, c, d, e, f, a + f, b + e };
	u64 sum = 0;

	for (int i = 0; i < 8; i++)
		sum = sum * 31 + on_stack[(i * 5 + a) & 7];
	return sum;
}
