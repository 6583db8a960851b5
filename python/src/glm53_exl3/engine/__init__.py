"""Layer 4: the vLLM plugin. Nothing else imports vLLM, and this module does so only when called."""


def register() -> None:
    """Entry point of `vllm.general_plugins`; vLLM calls it in every process, perhaps more than once."""
    from glm53_exl3.engine.plugin import register as register_plugin

    register_plugin()
