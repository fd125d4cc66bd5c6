# Makes a stream whose server forgets after 0.1 s, the shortest time, which messages it has stored.
import asyncio
import json
import sys

import nats


async def main(url, stream):
    client = await nats.connect(url)
    await client.jetstream().add_stream(
        name=stream, subjects=["vmprobe.>"], duplicate_window=0.1
    )
    print(json.dumps(stream))
    await client.close()


asyncio.run(main(*sys.argv[1:]))
