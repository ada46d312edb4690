from llm.testing.plugin import openai_loopback, scripted_llm  # noqa: F401  until the root conftest loads the plugin
