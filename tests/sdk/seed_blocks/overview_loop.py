import mint
from mint import types
service_client = mint.ServiceClient()
training_client = service_client.create_lora_training_client(
    base_model="Qwen/Qwen3-0.6B",
    rank=16,
    train_mlp=True,
    train_attn=True,
    train_unembed=True,
)
tokenizer = training_client.get_tokenizer()
adam_params = types.AdamParams(learning_rate=2e-5)
for step in range(num_steps):
    # 1. Sample from current policy
    sampling_client = training_client.save_weights_and_get_sampling_client(
        name=f"rl-step-{step}"
    )
    # 2. Collect samples and compute rewards (see RL demos)
    training_datums: list[types.Datum] = [...]
    # 3. Train with importance sampling
    training_client.forward_backward(
        training_datums,
        loss_fn="importance_sampling"
    ).result()
    training_client.optim_step(adam_params).result()
