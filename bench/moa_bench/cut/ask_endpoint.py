"""A program written for OpenAI's API, with two lines changed: `python -m moa_bench.cut.ask_endpoint URL QUESTION`."""

from __future__ import annotations

import sys


def main() -> None:
    """Prints an answer as it comes."""
    from openai import OpenAI

    url, question, tokens = sys.argv[1:]
    client = OpenAI(
        base_url=f"{url}/v1",  # this line is changed,
        api_key="none",  # and this one
    )
    stream = client.chat.completions.create(
        model="default",
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=int(tokens),
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
