g_rewards, g_responses, g_logprobs = [], [], []
for seq in res.sequences:
    txt = tokenizer.decode(seq.tokens)
    reward = 1.0 if extract_answer(txt) == gold_answer else 0.0
    g_rewards.append(reward)
    g_responses.append(list(seq.tokens))
    g_logprobs.append(list(seq.logprobs or [0.0] * len(seq.tokens)))
mean_r = sum(g_rewards) / len(g_rewards)
advs = [r - mean_r for r in g_rewards]
for resp_tok, lp, adv in zip(g_responses, g_logprobs, advs):
    if not resp_tok:
        continue
    full = prompt_tokens + resp_tok
    prefix = len(prompt_tokens) - 1
    datums.append(
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens=full[:-1]),
            loss_fn_inputs={
                "target_tokens": full[1:],
                "weights": [0.0] * prefix + [1.0] * len(resp_tok),
                "logprobs": [0.0] * prefix + lp,
                "advantages": [0.0] * prefix + [adv] * len(resp_tok),
            },
        )
    )
