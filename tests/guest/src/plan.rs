//! What the guest is asked to do: `key=value` arguments.

/// The whole plan.
///
/// | argument | meaning | default |
/// | --- | --- | --- |
/// | `workload=` | what to do, see [`Workload`] | `none` |
/// | `count=` | how often | 100 |
/// | `rounds=` | how often all of it, or how often something is switched | 1 |
/// | `syscall=` | which system call is made, see [`Call`] | `getppid` |
/// | `at=` | where the guest's own probes and tracers go, or what is switched, separated by commas | the entry of `syscall` |
/// | `module=` | name of the module file | `tun` |
/// | `hold=yes` | wait for a line of input after each step's report | no |
/// | `ms=` | how long `sleep` sleeps, in milliseconds | 1000 |
/// | `seed=` | where random numbers begin | 1 |
/// | `end=` | how to end, see [`End`] | `poweroff` |
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub workload: Workload,
    pub count: u64,
    pub rounds: u64,
    pub call: Call,
    /// The argument itself; see [`Plan::places`].
    pub at: String,
    pub module: String,
    pub hold: bool,
    pub sleep_ms: u64,
    pub seed: u64,
    pub end: End,
}

const KEYS: &str = "workload, count, rounds, syscall, at, module, hold, ms, seed and end";

/// An argument that can't be understood.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    #[error("argument {0:?} isn't key=value")]
    NoValue(String),
    #[error("unknown argument {0:?}; there are {KEYS}")]
    UnknownKey(String),
    #[error("{key}={value}: it must be one of {choices}")]
    UnknownValue {
        key: &'static str,
        value: String,
        choices: String,
    },
    #[error("{key}={value}: it must be a whole number")]
    NoNumber { key: &'static str, value: String },
}

/// An enum whose values have names on the command line.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            const ALL: &[Self] = &[$(Self::$variant),+];

            /// Its name on the command line and in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// The value of this name.
            pub fn parse(key: &'static str, value: &str) -> Result<Self, PlanError> {
                Self::ALL.iter().copied().find(|item| item.name() == value).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|item| item.name()).collect();
                    let choices = names.join(", ");
                    PlanError::UnknownValue { key, value: value.into(), choices }
                })
            }
        }
    };
}

named! {
    /// What the guest does between its `ready` and `done` reports.
    Workload {
        /// Nothing.
        None = "none",
        /// Writes to a port that no device has, which a tracer of the guest's exits sees.
        Mark = "mark",
        /// Makes some system calls, and reports their results.
        Answers = "answers",
        /// Counts the CPUs that are online.
        Cpus = "cpus",
        /// Lists the NUMA nodes, with their CPUs and memory.
        Nodes = "nodes",
        /// Opens a file that isn't there `count` times, by a name in memory above 4 GiB.
        Above = "above",
        /// Opens `/init`, reads 64 bytes and closes it, `count` times.
        Files = "files",
        /// Opens files by good, bad and long names, and reads into several buffers, `count` times each.
        Names = "names",
        /// Makes `getpgid` of pointers to all kinds of memory and to none, and reports how many there were of each
        /// kind.
        Hostile = "hostile",
        /// Makes `getpgid` of one pointer `count` times, while a thread on another CPU maps and unmaps the page that it
        /// points to.
        Unmapped = "unmapped",
        /// Starts a process that ends at once and waits for it, `count` times.
        Forks = "forks",
        /// The same from each CPU in turn, `count` times each.
        Everywhere = "everywhere",
        /// Sends a byte to another process and gets it back, `count` times.
        Pipes = "pipes",
        /// Counts without end, until a line of console input arrives.
        Spin = "spin",
        /// Reports each line of console input, until the line `quit`; does the workload of a line
        /// such as `workload=files count=5`.
        Echo = "echo",
        /// One thread on each CPU makes the system call `syscall` exactly `count` times.
        Threads = "threads",
        /// One thread makes `getppid` and then the system call `syscall`, `count` times from each CPU
        /// in turn.
        Pairs = "pairs",
        /// As `threads`, `rounds` times with a `round` report each; then reports complaints in the kernel's log.
        Smp = "smp",
        /// Sleeps for `ms` milliseconds.
        Sleep = "sleep",
        /// Puts the guest's own kprobes and kretprobes at the places `at`, makes `syscall` `count` times, and reports
        /// their counts.
        Kprobe = "kprobe",
        /// Registers a kprobe of the guest's own at the place `at`, arms it, disarms it and removes it, with `count`
        /// calls of `syscall` in between.
        KprobeSwitched = "kprobe-switched",
        /// The same, but after arming it waits until the kernel has made it a jump.
        KprobeJump = "kprobe-jump",
        /// The same with the function tracer and the function graph tracer.
        Ftrace = "ftrace",
        /// Writes to files of tracefs: `at` has `FILE=TEXT`, separated by `;`, commas for blanks.
        Tracing = "tracing",
        /// Reports how many calls of the functions `at` the function tracer has seen since `tracing`.
        Traced = "traced",
        /// Defines trace events of the guest's own by the definitions `at`, separated by `;`, commas for blanks.
        Define = "define",
        /// Reports the lines of the trace since `define`, and removes its events.
        Trace = "trace",
        /// Times `count` calls of `syscall` on the first CPU, `rounds` times; with `at`, under a kprobe
        /// event of the guest's own there that the kernel has made a jump. Its arguments, commas for blanks, and
        /// `stacktrace` may stand behind the place.
        Timed = "timed",
        /// Switches the trace events `at`, or some that are all over the kernel, on and off `rounds`
        /// times, so that the kernel patches its own text, while one thread on each CPU makes `syscall`
        /// `count` times over and over.
        StaticKeys = "statickeys",
        /// Debugs a process of its own with breakpoints and steps, `count` hits; then runs `count`
        /// int3s in a process that handles `SIGTRAP`.
        Debugger = "debugger",
        /// Loads `module`, uses it `count` times, unloads it; all of it `rounds` times.
        Module = "module",
        /// Loads and unloads `module` `rounds` times, `ms` milliseconds in between, while a thread on each CPU
        /// opens its device over and over.
        Churn = "churn",
        /// Loads `module`.
        Load = "load",
        /// Loads the drivers of virtio devices.
        Drivers = "drivers",
        /// Writes all of the disk `at` from all CPUs, `count` sectors at a time, makes some of it zeros, and reads it
        /// back.
        DiskFill = "disk-fill",
        /// Reads the disk `at`, which can't be written.
        DiskLook = "disk-look",
        /// Reads `count` bytes of the entropy device.
        Random = "random",
        /// Works with files on the disk `at` and with processes, `count` folders in each of `rounds` rounds, and times
        /// them.
        Mixed = "mixed",
        /// Mounts the share `at`, reads its files, makes `count` files from each CPU, and unmounts it.
        Share = "share",
        /// From each CPU, `count` connections to the port `at` of the host and as many from there to the next port,
        /// each of which brings back what it was sent.
        Sockets = "sockets",
        /// Sets up network interfaces, `at` has `NAME=ADDRESS`, separated by commas.
        Network = "network",
        /// As `sockets`, by TCP: `at` has the host's address and port.
        Connections = "connections",
        /// The part of `connections` that the guest begins, where neither side ends one before the other.
        Calls = "calls",
        /// Sends `count` bytes by TCP to the address and port `at`, which reads them all.
        Upload = "upload",
        /// Sends bytes by TCP without end to the address and port behind `NAME=` in `at`, until the link of the
        /// interface NAME is down.
        Flood = "flood",
        /// Unloads `module`.
        Unload = "unload",
        /// A round of files, pipes, processes, memory, signals, timers, sockets and the like, `count`
        /// times.
        Sweep = "sweep",
        /// Gives bad pointers to system calls, `count` times each.
        Fault = "fault",
        /// Lets `count` processes block in `read` of one pipe until they are released, or killed.
        Readers = "readers",
        /// Polls a chain of epoll instances, in which the kernel recurses, `count` times.
        Nested = "nested",
        /// One thread on each CPU takes new memory, checks and fills it, and gives it back, `count`
        /// times.
        Pages = "pages",
        /// One thread on each CPU sends itself a signal, `count` times, whose stack isn't there yet.
        AltStack = "altstack",
        /// Overwrites the memory at the physical address `at`, `rounds` times, while one thread on each CPU makes
        /// `syscall` `count` times over and over.
        Scribble = "scribble",
        /// Overwrites `count` bytes of memory of any content at the physical address `at`, `rounds` times, while one
        /// thread on each CPU makes `syscall` over and over.
        Overwrite = "overwrite",
        /// As `smp`, with the function tracer at `at`; reports how many calls it saw on each CPU, and how the CPUs'
        /// calls interleave.
        Interleaved = "interleaved",
        /// Asks the kernel for a kprobe at each byte of the ranges `at`, each `ADDRESS+LENGTH`.
        Probeable = "probeable",
        /// Reports where the kernel itself allows no kprobe.
        Blacklist = "blacklist",
        /// Counts the functions in the kernel's text, by its own list of symbols.
        Functions = "functions",
        /// Has the kernel patch its own text in every way there is: tracers, events, static keys, static
        /// calls, CPUs that come and go, modules.
        Toggle = "toggle",
        /// Has the kernel make kprobes of the places `at`, and reports how it lists them: kretprobes of those that end
        /// in `%return`, disabled ones of those that begin with `!`.
        Listing = "listing",
        /// The same, with jumps where the kernel can make them.
        ListingJumps = "listing-jumps",
        /// Fills nearly all free memory, and finds it unchanged afterwards.
        Fill = "fill",
        /// Reports complaints in the kernel's log.
        Log = "log",
        /// Writes `count` lines to the kernel's log, `ms` milliseconds apart, and reports the times that the log gave
        /// them.
        Say = "say",
        /// Has a process of its own read the file `at`, or write it if that is `FILE=TEXT`; reports how the process
        /// ended and the new lines of the kernel's log.
        Oops = "oops",
        /// Gives a file to `count` users in turn, asks who owns it, and sets an option of a socket.
        Owned = "owned",
        /// Puts the kernel's own tools at the places `at`, changes and removes them as lines of console input ask,
        /// until the line `quit`; see [`crate::workload::tools`].
        Tools = "tools",
    }
}

named! {
    /// The system call that is made. Nothing else in the guest makes it between `ready` and `done`.
    Call {
        /// `getppid`.
        Getppid = "getppid",
        /// `getuid`.
        Getuid = "getuid",
        /// `getpgid` of itself.
        Getpgid = "getpgid",
        /// `umask`.
        Umask = "umask",
        /// `alarm`, which sets no timer.
        Alarm = "alarm",
        /// `prctl(PR_SET_NAME)` of the calling thread.
        Rename = "rename",
        /// `open` of the device that the module `tun` makes; and `close`.
        Tun = "tun",
    }
}

named! {
    /// A choice of yes or no.
    Switch {
        /// Yes.
        Yes = "yes",
        /// No.
        No = "no",
    }
}

named! {
    /// How the guest ends.
    End {
        /// `reboot(RB_POWER_OFF)`.
        PowerOff = "poweroff",
        /// `reboot(RB_AUTOBOOT)`.
        Reboot = "reboot",
        /// The panic that sysrq's `c` asks for.
        Crash = "crash",
        /// PID 1 exits, at which the kernel panics.
        Panic = "panic",
        /// The guest doesn't end: PID 1 sleeps.
        Stay = "stay",
    }
}

impl Plan {
    /// Parses the arguments; those left out have their defaults.
    pub fn parse(arguments: &[String]) -> Result<Self, PlanError> {
        let mut plan = Self {
            workload: Workload::None,
            count: 100,
            rounds: 1,
            call: Call::Getppid,
            at: String::new(),
            module: "tun".into(),
            hold: false,
            sleep_ms: 1000,
            seed: 1,
            end: End::PowerOff,
        };
        // The kernel passes on words that only its decompressor knows.
        let own = |argument: &&String| !matches!(argument.as_str(), "nokaslr" | "kaslr");
        for argument in arguments.iter().filter(own) {
            let (key, value) = argument
                .split_once('=')
                .ok_or_else(|| PlanError::NoValue(argument.clone()))?;
            match key {
                "workload" => plan.workload = Workload::parse("workload", value)?,
                "count" => plan.count = number("count", value)?,
                "rounds" => plan.rounds = number("rounds", value)?,
                "at" => plan.at = value.into(),
                "module" => plan.module = value.into(),
                "hold" => plan.hold = Switch::parse("hold", value)? == Switch::Yes,
                "syscall" => plan.call = Call::parse("syscall", value)?,
                "ms" => plan.sleep_ms = number("ms", value)?,
                "seed" => plan.seed = number("seed", value)?,
                "end" => plan.end = End::parse("end", value)?,
                _ => return Err(PlanError::UnknownKey(key.into())),
            }
        }
        Ok(plan)
    }

    /// The places `at`, or the entry of the system call.
    pub fn places(&self) -> Vec<String> {
        match &*self.at {
            "" => vec![format!("__x64_sys_{}", self.call.name())],
            at => at.split(',').map(str::to_owned).collect(),
        }
    }
}

fn number(key: &'static str, value: &str) -> Result<u64, PlanError> {
    value.parse().map_err(|_| PlanError::NoNumber {
        key,
        value: value.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Plan, PlanError> {
        let arguments: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Plan::parse(&arguments)
    }

    #[test]
    fn without_arguments_it_does_nothing_and_powers_off() {
        let plan = parse("").unwrap();
        assert_eq!((plan.workload, plan.end), (Workload::None, End::PowerOff));
        assert_eq!(plan.places(), ["__x64_sys_getppid"]);
    }

    #[test]
    fn each_argument_sets_its_part() {
        let plan = parse(
            "workload=threads count=7 rounds=3 syscall=getuid at=a,b+0x9 module=loop hold=yes \
             ms=5 seed=9 end=panic",
        )
        .unwrap();
        assert_eq!(plan.places(), ["a", "b+0x9"]);
        let expected = Plan {
            workload: Workload::Threads,
            count: 7,
            rounds: 3,
            call: Call::Getuid,
            at: "a,b+0x9".into(),
            module: "loop".into(),
            hold: true,
            sleep_ms: 5,
            seed: 9,
            end: End::Panic,
        };
        assert_eq!(plan, expected);
    }

    #[test]
    fn words_for_the_decompressor_are_passed_over() {
        let arguments = ["nokaslr".to_owned(), "count=3".to_owned()];
        assert_eq!(Plan::parse(&arguments).unwrap().count, 3);
    }

    #[test]
    fn a_plan_s_unknown_words_are_named() {
        let cases = [
            ("files", "argument \"files\" isn't key=value"),
            (
                "load=x",
                "unknown argument \"load\"; there are workload, count, rounds, syscall, at, module, \
                 hold, ms, seed and end",
            ),
            ("count=-1", "count=-1: it must be a whole number"),
            (
                "syscall=x",
                "syscall=x: it must be one of getppid, getuid, getpgid, umask, alarm, rename, tun",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(parse(text).unwrap_err().to_string(), message);
        }
    }
}
