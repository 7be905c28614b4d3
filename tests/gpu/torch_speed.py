#!/usr/bin/env python3
"""PyTorch's time on the shapes that gpu_check measures, on the same GPU: one line a row, under the same name.

usage: torch_speed.py

The first two lines are ceilings that owe nothing to flow: a copy from device to device, and a bf16 product of 8192 x 8192.
Each figure is the median of 5 rounds of 10 calls between two events. Exits with 77 if there is no PyTorch or no GPU.
"""
import statistics
import sys

try:
    import torch
except ImportError:
    print("skipped: this Python has no torch")
    sys.exit(77)
from torch.nn import functional as F

if not torch.cuda.is_available():
    print("skipped: PyTorch finds no GPU")
    sys.exit(77)

DEVICE = "cuda:0"
copied = products = 0.0


def seconds(call):
    call()
    call()
    torch.cuda.synchronize()
    rounds = []
    for _ in range(5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(10):
            call()
        end.record()
        end.synchronize()
        rounds.append(begin.elapsed_time(end) / 10 * 1e-3)
    return statistics.median(rounds)


def row(name, amount, call, ceiling, unit):
    took = seconds(call)
    print(f"{name:<36} {took * 1e6:9.1f} us {amount / took / 1e9:9.1f} {unit}  {100 * amount / took / ceiling:5.1f}% of the ceiling",
          flush=True)


def moves(name, amount, call):
    row(name, amount, call, copied, "GB/s   ")


def computes(name, amount, call):
    row(name, amount, call, products, "GFLOP/s")


def random(dtype, *shape):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def ceilings():
    global copied, products
    x = torch.empty(1 << 30, dtype=torch.uint8, device=DEVICE)
    y = torch.empty_like(x)
    copied = 2.0 * x.numel() / seconds(lambda: y.copy_(x))
    a, b = random(torch.bfloat16, 8192, 8192), random(torch.bfloat16, 8192, 8192)
    out = torch.empty_like(a)
    products = 2.0 * 8192**3 / seconds(lambda: torch.mm(a, b, out=out))
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name(0)}: {copied / 1e9:.0f} GB/s copied, "
          f"{products / 1e9:.0f} GFLOP/s in a bf16 product of 8192", flush=True)


def elementwise():
    x, y = random(torch.float32, 1 << 28), random(torch.float32, 1 << 28)
    z = torch.empty_like(x)
    size = 4.0 * (1 << 28)
    moves("copy f32", 2 * size, lambda: z.copy_(x))
    moves("add f32", 3 * size, lambda: torch.add(x, y, out=z))
    moves("gelu_tanh f32", 2 * size, lambda: F.gelu(x, approximate="tanh"))
    moves("sum f32", size, x.sum)


def rows():
    for dtype, text in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        x, grad = random(dtype, 32768, 4096), random(dtype, 32768, 4096)
        weight, bias = random(dtype, 4096), random(dtype, 4096)
        size = float(x.numel() * x.element_size())
        moves(f"layer_norm {text}", 2 * size, lambda: F.layer_norm(x, (4096,), weight, bias))
        _, mean, rstd = torch.ops.aten.native_layer_norm(x, (4096,), weight, bias, 1e-5)
        moves(f"layer_norm_backward {text}", 3 * size, lambda: torch.ops.aten.native_layer_norm_backward(
            grad, x, (4096,), mean, rstd, weight, bias, (True, True, True)))
        moves(f"softmax {text}", 2 * size, lambda: torch.softmax(x, -1))
        y = torch.softmax(x, -1)
        moves(f"softmax_backward {text}", 3 * size,
              lambda: torch.ops.aten._softmax_backward_data(grad, y, -1, dtype))
        moves(f"sum of columns {text}", size, lambda: x.sum(0))


def cross_entropy():
    logits = random(torch.bfloat16, 8192, 50257).requires_grad_()
    labels = torch.randint(0, 50257, (8192,), device=DEVICE)
    size = float(logits.numel() * 2)
    moves("cross_entropy bf16", size, lambda: F.cross_entropy(logits, labels, reduction="none"))
    grad = torch.ones(8192, device=DEVICE, dtype=torch.bfloat16)

    def both():
        logits.grad = None
        F.cross_entropy(logits, labels, reduction="none").backward(grad)

    moves("cross_entropy both ways bf16", 3 * size, both)


def adamw():
    weights = torch.nn.Parameter(random(torch.float32, 1 << 27))
    weights.grad = random(torch.float32, 1 << 27)
    opt = torch.optim.AdamW([weights], lr=1e-4, fused=True)
    moves("adamw f32", 7 * 4.0 * (1 << 27), opt.step)


def matrix_products():
    for dtype, text in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        x, y, bias = random(dtype, 4096, 4096), random(dtype, 4096, 4096), random(dtype, 4096)
        out = torch.empty_like(x)
        amount = 2.0 * 4096**3
        computes(f"matmul 4096 {text}", amount, lambda: torch.mm(x, y, out=out))
        computes(f"matmul 4096 bias gelu {text}", amount, lambda: F.gelu(torch.addmm(bias, x, y), approximate="tanh"))


def attention():
    for dtype, text in ((torch.float16, "f16"), (torch.bfloat16, "bf16")):
        for width in (64, 128, 256):
            for causal in (False, True):
                q, k, v = (random(dtype, 4, 16, 2048, width).requires_grad_() for _ in range(3))
                grad = random(dtype, 4, 16, 2048, width)
                product = 2.0 * 4 * 16 * 2048 * 2048 * width / (2 if causal else 1)
                what = f" {text} {width}{' causal' if causal else ''}"
                computes("attention" + what, 2 * product,
                         lambda: F.scaled_dot_product_attention(q, k, v, is_causal=causal).detach())
                out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
                computes("attention_backward" + what, 5 * product,
                         lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True))


def convolutions():
    amount = 2.0 * 64 * 128 * 56 * 56 * 128 * 9
    for dtype, text in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        x, w, bias = random(dtype, 64, 128, 56, 56), random(dtype, 128, 128, 3, 3), random(dtype, 128)
        grad = random(dtype, 64, 128, 56, 56)
        computes(f"conv2d bias {text}", amount, lambda: F.conv2d(x, w, bias, padding=1))
        computes(f"conv2d {text}", amount, lambda: F.conv2d(x, w, None, padding=1))

        def backward(which):
            return lambda: torch.ops.aten.convolution_backward(
                grad, x, w, None, (1, 1), (1, 1), (1, 1), False, (0, 0), 1, which)

        computes(f"conv2d_backward_input {text}", amount, backward((True, False, False)))
        computes(f"conv2d_backward_weight {text}", amount, backward((False, True, False)))


def transfers():
    host, device = torch.empty(1 << 28, dtype=torch.uint8), torch.empty(1 << 28, dtype=torch.uint8, device=DEVICE)
    pinned = host.pin_memory()
    for name, source, target in (("host to device, pageable", host, device), ("host to device, pinned", pinned, device),
                                 ("device to host, pageable", device, host), ("device to host, pinned", device, pinned)):
        took = seconds(lambda: target.copy_(source))
        print(f"{name:<36} {took * 1e6:9.1f} us {host.numel() / took / 1e9:9.1f} GB/s", flush=True)


with torch.no_grad():
    ceilings()
    for part in (elementwise, rows, matrix_products, transfers):
        part()
for part in (cross_entropy, adamw, attention, convolutions):
    part()
    torch.cuda.empty_cache()
