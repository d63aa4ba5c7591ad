"""What machines boot from: kernels, Debian packages, initramfs archives, QEMU's accelerator.

The hosts of a lab and guests that are virtual machines start from the same files. Knows neither.
"""
