"""What is known of tensors on the GPU: the content of each, kept on the CPU, and whence it is."""

#: Whence a content is; of several that are computed together, the last that is among them: values that a constant was made with on the GPU,
#: whole numbers and booleans that the script brought from the CPU, a router's choice, and how many rows a mask finds.
KINDS = CONSTANT, DATA, ROUTER, MASK = "constant", "data", "router", "mask"
#: What says of a size that nobody knows its content: it was read as zeros.
NOBODY = "nobody"
#: The most numbers that are followed in one tensor: of a router's choice or a mask, of others, and of bytes: more are pictures or weights.
NUMBERS, BROUGHT, BYTES = 2**26, 2**22, 2**16


def most(kind: str) -> int:
    """The most numbers of a tensor whose content is kept."""
    return BROUGHT if kind in (CONSTANT, DATA) else NUMBERS


def start(tensor) -> int:
    """The address of a tensor's storage. Python has not looked at the storage then: autograd adds no gradient in place to one that it has."""
    return tensor.data_ptr() - tensor.storage_offset() * tensor.element_size()


class Known:
    """Tensors on the GPU whose content is known: of each its storage's, on the CPU."""

    def __init__(self, torch):
        from torch.multiprocessing.reductions import StorageWeakRef

        self.torch, self.weak, self.kept = torch, StorageWeakRef, {}

    def has(self, tensor) -> bool:
        """Whether something may be known of a tensor."""
        return start(tensor) in self.kept

    def of(self, tensor, constants: bool = False):
        """The content of a tensor, None where it is not known. constants: whether one that was made on the GPU counts too."""
        told = self._told(tensor)
        if told is None or told[1].dtype != tensor.dtype or (told[0] == CONSTANT and not constants):
            return None
        return told[1].as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    def kind(self, tensor) -> str:
        """Whence the content of a tensor is; of one that is not known, a constant."""
        told = self._told(tensor)
        return told[0] if told and told[1].dtype == tensor.dtype else CONSTANT

    def _told(self, tensor):
        """(kind, content of the storage); None, from now on too, where it has been changed by what is not followed."""
        found = self.kept.get(start(tensor))
        if found is None:
            return None
        weak, version, flat, kind = found
        size = tensor.untyped_storage().nbytes() // flat.element_size()
        if weak.expired() or version != _version(tensor) or flat.numel() != size:
            self.forget(tensor)
            return None
        return kind, flat

    def forget(self, tensor) -> None:
        """Know nothing of a tensor's storage."""
        self.kept.pop(start(tensor), None)

    def written(self, tensors) -> None:
        """A kernel that nobody follows may have written among these: constants are none any more."""
        for one in tensors if self.kept else ():
            if self.torch.is_tensor(one) and one.is_cuda and self.kind(one) == CONSTANT:
                self.forget(one)

    def tell(self, tensor, content, kind: str, changed: bool = False) -> None:
        """Note the content of a tensor. changed: whether it is being changed in place, which counts its version after this."""
        storage, version = tensor.untyped_storage(), _version(tensor)
        before = self._told(tensor)
        size = storage.nbytes() // tensor.element_size()
        self.forget(tensor)
        unseen = version is None and kind in (CONSTANT, DATA)  # in inference mode: nobody counts changes
        part = changed and tensor.numel() < size
        if size > most(kind) or unseen or part and (before is None or before[1].dtype != tensor.dtype):
            return
        if part:
            kind, flat = max(kind, before[0], key=KINDS.index), before[1]
        else:
            flat = self.torch.zeros(size, dtype=tensor.dtype, device="cpu")
        flat.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset()).copy_(content)
        self.kept = {key: kept for key, kept in [*self.kept.items()] if not kept[0].expired()}
        self.kept[start(tensor)] = self.weak(storage), version if version is None else version + changed, flat, kind


def _version(tensor):
    return None if tensor.is_inference() else tensor._version
