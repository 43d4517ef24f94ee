# SPDX-License-Identifier: Apache-2.0
"""As much of torch as the tensor calls use, made of numpy: for machines without it."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np

float32, float64, float16 = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
int8, int16, int32, int64 = (np.dtype(name) for name in ("int8", "int16", "int32", "int64"))
uint8, uint16, uint32, uint64 = (np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64"))
bool = np.dtype(np.bool_)


class FakeTensor:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def contiguous(self) -> FakeTensor:
        return FakeTensor(np.ascontiguousarray(self.array).reshape(self.array.shape))

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def narrow(self, dimension: int, start: int, length: int) -> FakeTensor:
        return FakeTensor(self.array[(slice(None),) * dimension + (slice(start, start + length),)])

    def view(self, dtype: np.dtype) -> FakeTensor:
        return FakeTensor(self.array.view(dtype))

    def reshape(self, shape: Sequence[int]) -> FakeTensor:
        return FakeTensor(self.array.reshape(shape))

    def t(self) -> FakeTensor:
        return FakeTensor(self.array.T)

    def __getitem__(self, index: Any) -> FakeTensor:
        return FakeTensor(self.array[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value

    def tolist(self) -> list[Any]:
        return self.array.tolist()


def empty(shape: Any, dtype: np.dtype) -> FakeTensor:
    return FakeTensor(np.empty(shape, dtype))


def zeros(*shape: int, dtype: np.dtype = float32) -> FakeTensor:
    return FakeTensor(np.zeros(shape, dtype))


def tensor(values: Any, dtype: np.dtype = float32) -> FakeTensor:
    return FakeTensor(np.array(values, dtype))


def arange(end: int, dtype: np.dtype = float32) -> FakeTensor:
    return FakeTensor(np.arange(end).astype(dtype))


def frombuffer(buffer: Any, dtype: np.dtype) -> FakeTensor:
    return FakeTensor(np.frombuffer(buffer, dtype))


def cat(parts: Sequence[FakeTensor], dim: int) -> FakeTensor:
    return FakeTensor(np.concatenate([part.array for part in parts], dim))


def equal(one: FakeTensor, other: FakeTensor) -> Any:
    return one.dtype == other.dtype and np.array_equal(one.array, other.array)
