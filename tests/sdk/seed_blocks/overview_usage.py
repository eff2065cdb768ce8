adam_params = types.AdamParams(learning_rate=2e-5)
result = training_client.forward_backward(
    datums,
    loss_fn="importance_sampling"
).result()
training_client.optim_step(adam_params).result()
