"""``mint sample``: a prompt from the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from .output import Mistake, print_json
from .remote import Remote, UrlOption


def sample(
    prompt: Annotated[
        str | None, typer.Argument(help="Default: what comes on standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A base model, or the tinker:// path of a checkpoint."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="A system message before the prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1)] = 256,
    temperature: Annotated[float, typer.Option(min=0)] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1)] = 1.0,
    n: Annotated[int, typer.Option("-n", min=1, max=128, help="How many answers.")] = 1,
    seed: Annotated[int | None, typer.Option()] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Ends an answer. May be repeated.")] = None,
    url: UrlOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the service's answer.")] = False,
) -> None:
    """Ask a model or a checkpoint, and print what it answers as it comes."""
    if raw and system is not None:
        raise Mistake("--raw has no messages, so --system has no place. Leave one of them out.")
    remote = Remote(url)
    body: dict[str, Any] = {
        "model": model or _first_model(remote),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "n": n,
        "seed": seed,
        "stop": stop or None,
    }
    text = sys.stdin.read() if prompt is None else prompt
    if raw:
        path, body["prompt"] = "/v1/completions", text
    else:
        messages = [{"role": "system", "content": system}] if system is not None else []
        path, body["messages"] = (
            "/v1/chat/completions",
            [*messages, {"role": "user", "content": text}],
        )
    if as_json:
        print_json(remote.request("POST", path, json=body))
    elif n > 1:
        _print_choices(remote.request("POST", path, json=body)["choices"])
    else:
        for part in _stream(remote, path, body):
            typer.echo(part, nl=False)
        typer.echo()


def _first_model(remote: Remote) -> str:
    """The model that the service has in use, or would use first."""
    models = remote.get("/v1/models")["data"]
    if not models:
        raise Mistake("Say which model: --model NAME. The service has none without the hub.")
    name = str(models[0]["id"])
    typer.echo(f"mint: asking {name}; --model NAME asks another", err=True)
    return name


def _print_choices(choices: list[dict[str, Any]]) -> None:
    for choice in choices:
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        typer.echo(f"[{choice['index'] + 1}] {text}")


def _stream(remote: Remote, path: str, body: dict[str, Any]) -> Iterator[str]:
    with (
        remote.failures(),
        remote.http.stream("POST", path, json={**body, "stream": True}) as answer,
    ):
        remote.check(answer)
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise Mistake(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["text"] if "text" in choice else choice["delta"].get("content", "")
