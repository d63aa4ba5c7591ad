"""Files that virtual machines boot from: kernels, Debian packages, initramfs; QEMU's accelerator.

For the hosts of a lab and for guests in virtual machines.
"""
