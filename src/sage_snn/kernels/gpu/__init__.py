"""The operators on NVIDIA and AMD devices, in Triton: a file each, with the signatures of the C++ ones.

Nothing here is imported before a tensor on such a device asks for it; `available.py` says whether it can.
"""
