// A CUDA device in a torch that is built without CUDA: its memory is the host's, in disguise.
//
// A block of device memory holds a storage of the CPU. What makes tensors, or views of them, is here; every other
// operator comes to the fallback in __init__.py, which takes the disguise off (host), runs the CPU's kernel, and puts
// it on again (adopt). Memory is counted, and runs out beyond a limit.

#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>

namespace {

using at::Tensor;
using c10::DataPtr;
using c10::Device;
using c10::DeviceType;
using c10::Storage;
using c10::Stream;

const Device CUDA{DeviceType::CUDA, 0};
std::atomic<size_t> used{0}, peak{0}, limit{SIZE_MAX};

struct Block {
  Storage held;
  size_t size;
  explicit Block(Storage storage) : held(std::move(storage)), size(held.nbytes()) {
    size_t now = used += size;
    for (size_t before = peak; before < now && !peak.compare_exchange_weak(before, now);) {
    }
  }
  ~Block() { used -= size; }
};

void free_block(void* block) { delete static_cast<Block*>(block); }

void demand_room(size_t size) {
  if (used + size > limit) {
    std::string said = "CUDA out of memory. Tried to allocate " + std::to_string(size) + " bytes.";
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, said);
  }
}

DataPtr disguised(Storage storage) {
  demand_room(storage.nbytes());
  void* data = storage.mutable_data();
  return {data, new Block(std::move(storage)), &free_block, CUDA};
}

struct DeviceMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    demand_room(size);
    return disguised(Storage(Storage::use_byte_size_t(), size, c10::GetCPUAllocator(), /*resizable=*/false));
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
} device_memory;

std::mutex pinned_lock;
std::map<const char*, size_t> pinned;
size_t pinned_used = 0, pinned_peak = 0;  // of blocks as large as torch makes them: powers of two

struct PinnedMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    auto* data = static_cast<char*>(c10::GetCPUAllocator()->raw_allocate(size));
    std::lock_guard<std::mutex> hold(pinned_lock);
    pinned[data] = size;
    pinned_peak = std::max(pinned_peak, pinned_used += size ? std::bit_ceil(size) : 0);
    return {data, data, &free_pinned, Device(DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t size) const override { default_copy_data(to, from, size); }
  static void free_pinned(void* data) {
    {
      std::lock_guard<std::mutex> hold(pinned_lock);
      auto block = pinned.find(static_cast<char*>(data));
      pinned_used -= block->second ? std::bit_ceil(block->second) : 0;
      pinned.erase(block);
    }
    c10::GetCPUAllocator()->raw_deallocate(data);
  }
  static bool has(const void* data) {
    std::lock_guard<std::mutex> hold(pinned_lock);
    auto after = pinned.upper_bound(static_cast<const char*>(data));
    return after != pinned.begin() && static_cast<const char*>(data) < (--after)->first + after->second;
  }
} pinned_memory;

// The device that torch's own code asks for: one, whose only stream works in step with the program.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device exchangeDevice(Device) const override { return CUDA; }
  Device getDevice() const override { return CUDA; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, CUDA); }
  Stream getDefaultStream(Device) const override { return Stream(Stream::DEFAULT, CUDA); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, CUDA); }
  Stream exchangeStream(Stream) const noexcept override { return Stream(Stream::DEFAULT, CUDA); }
  void record(void**, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  int getNumGPUs() const override { return 1; }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::has(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
};

constexpr c10::DispatchKeySet KEYS{c10::DispatchKey::CUDA};
template <typename T>
using Maybe = std::optional<T>;

Tensor empty(
    at::IntArrayRef size, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>, Maybe<bool>,
    Maybe<at::MemoryFormat> format) {
  return Tensor(at::detail::empty_generic(size, &device_memory, KEYS, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, Maybe<at::ScalarType> dtype, Maybe<at::Layout>, Maybe<Device>,
    Maybe<bool>) {
  return Tensor(at::detail::empty_strided_generic(size, stride, &device_memory, KEYS, c10::dtype_or_default(dtype)));
}

Tensor like(const Tensor& tensor, Storage storage, c10::DispatchKey key) {
  Tensor made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  return made;
}

// The CPU's tensor in the memory of one of the device: what is written to one is in the other.
Tensor host(const Tensor& tensor) {
  auto* block = tensor.storage().data_ptr().cast_context<Block>(&free_block);
  TORCH_CHECK(block != nullptr, "not memory of the mock device");
  return like(tensor, block->held, c10::DispatchKey::CPU);
}

// The device's tensor of one of the CPU, which nothing else may use any more.
Tensor adopt(const Tensor& tensor) {
  size_t size = tensor.storage().nbytes();
  Storage storage(Storage::use_byte_size_t(), size, disguised(tensor.storage()), &device_memory, /*resizable=*/true);
  return like(tensor, std::move(storage), c10::DispatchKey::CUDA);
}

// What a tensor's storage has, in a block of another size: every view of it sees that.
void resize_storage(const Tensor& tensor, int64_t size) {
  const Storage& storage = tensor.storage();
  DataPtr made = device_memory.allocate(static_cast<size_t>(size));
  std::memcpy(made.mutable_get(), storage.data(), std::min(storage.nbytes(), static_cast<size_t>(size)));
  storage.set_data_ptr_noswap(std::move(made));
  storage.set_nbytes(static_cast<size_t>(size));
}

// torch asks its hooks whether there is a CUDA device. It makes them once, early, and keeps them: they are replaced in
// their place, by an object that, like them, has nothing but its functions.
template <typename T, typename... Arguments>
void replace_hooks(Arguments... arguments) {
  static_assert(sizeof(T) == sizeof(at::CUDAHooksInterface));
  new (const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks())) T(arguments...);
}

void register_guard(const Guard* guard) {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(DeviceType::CUDA)].store(guard);
}

void plug_in() {
  static const Guard guard;
  register_guard(&guard);
  replace_hooks<Hooks>();
}

void unplug() {
  replace_hooks<at::CUDAHooksInterface>();
  register_guard(nullptr);
}

}  // namespace

TORCH_LIBRARY(mock_cuda, library) {
  library.def("host(Tensor tensor) -> Tensor", host);
  library.def("adopt(Tensor tensor) -> Tensor", adopt);
  library.def("resize_storage(Tensor tensor, int bytes) -> ()", resize_storage);
  library.def("plug_in() -> ()", plug_in);
  library.def("unplug() -> ()", unplug);
  library.def("used() -> int", [] { return static_cast<int64_t>(used.load()); });
  library.def("peak() -> int", [] { return static_cast<int64_t>(peak.load()); });
  library.def("reset_peak() -> ()", [] { peak = used.load(); });
  library.def("pinned() -> int", [] { return static_cast<int64_t>(pinned_used); });
  library.def("pinned_peak() -> int", [] { return static_cast<int64_t>(pinned_peak); });
  library.def("reset_pinned_peak() -> ()", [] { pinned_peak = pinned_used; });
  library.def("set_limit(int bytes) -> ()", [](int64_t bytes) { limit = static_cast<size_t>(bytes); });
}

// A conjugate keeps its bit in disguise: nobody need compute it for that.
TORCH_LIBRARY_IMPL(mock_cuda, Conjugate, library) { library.impl("host", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(mock_cuda, Negative, library) { library.impl("host", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("view", at::native::view);
  library.impl("_reshape_alias", at::native::_reshape_alias);
  library.impl("unfold", at::native::unfold);
  library.impl("view_as_real", at::native::view_as_real);
  library.impl("view_as_complex", at::native::view_as_complex);
  library.impl("resize_", at::native::resize_);
  library.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  library.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  library.impl("set_.source_Tensor", at::native::set_tensor_);
}
