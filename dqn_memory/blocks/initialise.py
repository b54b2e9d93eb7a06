"""The initial values of a network, as DTQN draws them."""

from torch import nn

DEVIATION = 0.02


def initialise(module: nn.Module) -> None:
    """Draw every Linear and Embedding inside `module` from N(0, 0.02), biases 0, LayerNorm 1 and 0, in place.

    Recurrences keep PyTorch's U(+-1/sqrt(H)). The gate biases of GTrXL, learned positions and every block that
    `initialises_itself` keep the values of their classes. The published code overwrites those gate biases with 0, which
    defeats their purpose. Draws come from the default generator: call this inside `fork_rng` with the network's seed.
    """
    if getattr(module, "initialises_itself", False):
        return
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=DEVIATION)
    elif isinstance(module, nn.LayerNorm) and module.elementwise_affine:
        nn.init.ones_(module.weight)
    if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
        nn.init.zeros_(module.bias)
    for child in module.children():
        initialise(child)
