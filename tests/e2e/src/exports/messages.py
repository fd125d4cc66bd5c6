# Prints all messages of a stream as JSON: subject, headers, body.
import asyncio
import json
import sys

import nats


async def main(url, stream):
    client = await nats.connect(url)
    jetstream = client.jetstream()
    count = (await jetstream.stream_info(stream)).state.messages
    subscription = await jetstream.subscribe(
        "vmprobe.>", stream=stream, ordered_consumer=True
    )
    messages = []
    while len(messages) < count:
        message = await subscription.next_msg(timeout=60)
        messages.append(
            [message.subject, message.headers, json.loads(message.data)]
        )
    print(json.dumps(messages))
    await client.close()


asyncio.run(main(*sys.argv[1:]))
