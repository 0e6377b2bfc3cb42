// Python bindings of the replay's items by their keys. Whoever calls has made the keys a contiguous uint64 array.
#include <nanobind/stl/optional.h>

#include "bind.h"

namespace apexrl {
namespace {

const uint64_t* keys_of(const Buffer& keys) {
  if (!keys.vector('u', 8)) throw std::invalid_argument("keys are a uint64 array [N]");
  return keys.data<uint64_t>();
}

}  // namespace

// Where an answer is -1, this process does not own the replay.
void bind_items(nb::class_<PyReplay>& replay) {
  replay
      .def("keys", [](PyReplay& r) -> std::optional<nb::bytes> {  // uint64, oldest first; none: not the owner
        const auto owner = r.replay->owner();
        std::optional<std::vector<uint64_t>> keys;
        if (owner != nullptr) {
          nb::gil_scoped_release release;
          keys = owner->keys();
        }
        if (!keys) return std::nullopt;
        return nb::bytes(reinterpret_cast<const char*>(keys->data()), keys->size() * sizeof(uint64_t));
      })
      .def("read", [](PyReplay& r, Outputs& out, nb::handle keys) {  // -> items found, which lie first in the outputs
        Buffer k;
        if (!k.get(keys.ptr())) throw std::invalid_argument("keys are a contiguous array");
        const uint64_t* all = keys_of(k);
        if (k.size() > out.n) throw std::invalid_argument("there are more keys than rows of the outputs");
        const auto owner = r.replay->owner();
        if (owner == nullptr) return int64_t(-1);
        nb::gil_scoped_release release;
        return owner->read(all, k.size(), out);
      }, nb::arg("outputs"), nb::arg("keys"))
      .def("remove", [](PyReplay& r, nb::handle keys) {  // -> items that were there
        Buffer k;
        if (!k.get(keys.ptr())) throw std::invalid_argument("keys are a contiguous array");
        const uint64_t* all = keys_of(k);
        const auto owner = r.replay->owner();
        if (owner == nullptr) return int64_t(-1);
        nb::gil_scoped_release release;
        return owner->remove(all, k.size());
      }, nb::arg("keys"))
      .def("change", [](PyReplay& r, nb::handle keys, std::vector<uint32_t> columns, nb::list values) {  // -> items that were there
        Buffer k;
        if (!k.get(keys.ptr())) throw std::invalid_argument("keys are a contiguous array");
        const uint64_t* all = keys_of(k);
        const Header& h = r.replay->view().header();
        std::vector<Buffer> buffers(columns.size());
        std::vector<NewValues> news;
        for (size_t i = 0; i < columns.size(); ++i) {
          if (columns[i] >= h.geometry.columns || !buffers[i].get(values[i].ptr()) ||
              size_t(buffers[i].view().len) != k.size() * h.column[columns[i]].bytes)
            throw std::invalid_argument("new values are a contiguous array with a row for each key");
          news.push_back({&h.column[columns[i]], buffers[i].data<uint8_t>()});
        }
        const auto owner = r.replay->owner();
        if (owner == nullptr) return int64_t(-1);
        nb::gil_scoped_release release;
        return owner->change(all, k.size(), news);
      }, nb::arg("keys"), nb::arg("columns"), nb::arg("values"));
}

}  // namespace apexrl
