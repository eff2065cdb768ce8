from agent_tunix.rewards import check_answer, match_format_exactly

# Test data
test_cases = [
    {
        "response": "2 + 2 = 4. The answer is 4.",
        "ground_truth": "4",
        "expected_format": "The answer is [NUM].",
        "expected_reward": 1.0,
    },
    {
        "response": "2 plus 2 equals 4.",
        "ground_truth": "4",
        "expected_format": "The answer is [NUM].",
        "expected_reward": 0.5,  # Correct but wrong format
    },
]

# Evaluate
for case in test_cases:
    format_reward = match_format_exactly(case["response"], case["expected_format"])
    correctness_reward = check_answer(case["response"], case["ground_truth"])
    total = 0.3 * format_reward + 0.7 * correctness_reward
    print(f"Expected: {case['expected_reward']}, Got: {total}")
