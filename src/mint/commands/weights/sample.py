"""``mint sample``: a prompt from the terminal."""

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from mint.commands.shared.names import Named, find
from mint.commands.shared.output import Mistake, print_json, say
from mint.commands.shared.remote import Remote, UrlOption
from mint.commands.weights.prompting import TrainedPrompt

_MAX_TOKENS = 256


def sample(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt. Default: standard input.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="A base model, a run directory, a tinker:// path, a prefix of a run id, or a "
            "checkpoint name.",
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    raw: Annotated[
        bool | None,
        typer.Option(
            "--raw/--chat",
            help="Send the prompt as plain text, or through the chat template. Default: as in "
            "training, for a run directory; otherwise --chat.",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Default: as in training, otherwise 256.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest token.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Nucleus sampling.")] = 1.0,
    n: Annotated[int, typer.Option("-n", min=1, max=128, help="Number of answers.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Stop string; may be repeated. Default: as in training."),
    ] = None,
    url: UrlOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the service's response as JSON.")
    ] = False,
) -> None:
    """Sample from a model, a run or a checkpoint, and stream the answer.

    If no service is running, one is started for the duration of the command. For a run directory,
    the prompt is rendered as in training: same system prompt, template, stop strings and length.
    """
    if raw and system is not None:
        raise Mistake(
            "--raw sends plain text, which has no system prompt. Leave out --raw or --system."
        )
    text = sys.stdin.read() if prompt is None else prompt
    named = find(model, url) if model is not None else _first_model(Remote.running_or_embedded(url))
    trained = _trained_prompt(named)
    is_raw = trained.raw and system is None if raw is None else raw
    text = trained.fill(text)
    body: dict[str, Any] = {
        "model": named.model,
        "max_tokens": max_tokens or trained.max_tokens or _MAX_TOKENS,
        "temperature": temperature,
        "top_p": top_p,
        "n": n,
        "seed": seed,
        "stop": stop or list(trained.stop) or None,
    }
    if is_raw:
        path, body["prompt"] = "/v1/completions", trained.examples + text
    else:
        instruction = system or trained.system
        first = [{"role": "system", "content": instruction}] if instruction is not None else []
        path, body["messages"] = "/v1/chat/completions", [*first, {"role": "user", "content": text}]
        body["chat_template_kwargs"] = dict(trained.template_settings)
    if not as_json and n == 1:
        for part in _stream(named.remote, path, body):
            typer.echo(part, nl=False)
        typer.echo()
        return
    response = named.remote.request("POST", path, json=body)
    if as_json:
        print_json(response)
        return
    for choice in response["choices"]:
        answer = choice["text"] if "text" in choice else choice["message"]["content"]
        typer.echo(f"[{choice['index'] + 1}] {answer}")


def _trained_prompt(named: Named) -> TrainedPrompt:
    """Return how the run prompted its model; defaults if there is no run directory."""
    if named.run_directory is None:
        return TrainedPrompt()
    trained = TrainedPrompt.read(named.run_directory)
    said = trained.describe()
    say(f"sampling from {named.model}" + (f", as in training: {said}" if said else ""))
    return trained


def _first_model(remote: Remote) -> Named:
    """Return the first model that the service lists."""
    models = remote.get("/v1/models")["data"]
    if not models:
        raise Mistake("Name a model: --model NAME. The service has none that is available offline.")
    name = str(models[0]["id"])
    say(f"sampling from {name}; choose another with --model NAME")
    return Named(name, remote)


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
