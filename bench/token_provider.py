"""A provider on loopback that speaks the chat-completions wire and streams words at a fixed pace.

python token_provider.py PACE_S WORDS        prints its port; each word is the monotonic second at which it was written

Streams begin after a random wait, as models do, so that the streams' words do not come all at once.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_796_000_000, "model": "paced"}
FIRST_S = (0.2, 1.2)
IDLE_S = 120.0


def sse(value: dict[str, Any]) -> bytes:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def delta(**content: Any) -> bytes:
    return sse({**HEAD, "choices": [{"index": 0, "delta": content, "finish_reason": None}]})


async def read_request(reader: asyncio.StreamReader) -> bytes:
    """The request's head, its body read and dropped."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
    return head


async def stream(writer: asyncio.StreamWriter, pace_s: float, words: int) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    writer.write(delta(role="assistant", content=""))
    due = time.monotonic() + random.uniform(*FIRST_S)
    for _ in range(words):
        await asyncio.sleep(due - time.monotonic())
        writer.write(delta(content=f"{time.monotonic():.6f} "))
        await writer.drain()
        due += pace_s
    usage = {"prompt_tokens": 10, "completion_tokens": words, "total_tokens": words + 10}
    writer.write(sse({**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}))
    writer.write(sse({**HEAD, "choices": [], "usage": usage}) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    await writer.drain()


async def serve(pace_s: float, words: int) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                if (await read_request(reader)).startswith(b"GET"):
                    body = json.dumps({"object": "list", "data": [{"id": "paced", "object": "model"}]}).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ")
                    writer.write(b"%d\r\n\r\n%s" % (len(body), body))
                else:
                    await stream(writer, pace_s, words)
        except (OSError, EOFError, TimeoutError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), int(sys.argv[2])))
