"""DP-SGD: the mechanism, its options, its steps, and its sessions."""

from .mechanism import DpSgd as DpSgd
