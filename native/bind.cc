// The module _native: shared memory, the weights board, and structures exposed for tests. Only bind*.cc use Python.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include "bind.h"
#include "board.h"
#include "checksum.h"
#include "choices.h"
#include "power.h"

using namespace apexrl;

namespace {

std::atomic<uint32_t>& word(const Segment& s, size_t offset) {
  if (offset % 4 != 0 || offset + 4 > s.nbytes()) throw std::invalid_argument("no word at this offset");
  return *reinterpret_cast<std::atomic<uint32_t>*>(s.data() + offset);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "The native core of apexrl: shared memory, the replay and the weights board.";

  nb::class_<Segment>(m, "Segment", "Zero-filled memory shared by local processes; freed with its last holder.")
      .def(nb::new_([](size_t nbytes, const std::string& directory) { return Segment::create(nbytes, directory); }),
           nb::arg("nbytes"), nb::arg("directory") = "")
      .def_prop_ro("nbytes", &Segment::nbytes)
      .def_prop_ro("name", &Segment::name, "Its name in messages.")
      .def("read_by_page", &Segment::read_by_page)
      .def("promise", &Segment::promise, nb::arg("nbytes"), "Declare how many bytes it takes when full, including what its users keep elsewhere.")
      .def_static("promised", [] { return Segment::promised(); },
                  "Bytes declared for in-memory segments of this process and not yet in use.")
      .def_prop_ro("promised_beside", &Segment::promised_beside)
      .def_prop_ro("in_memory", &Segment::in_memory)
      .def_prop_ro("free", &Segment::free, "Free bytes of its file system; None: not limited.")
      .def_prop_ro("uuid", [](const Segment& s) {
        return nb::bytes(reinterpret_cast<const char*>(s.uuid().data()), 16);
      })
      .def("try_lock", &Segment::try_lock, nb::arg("index"), "True: this process acquired it now.")
      .def("unlock", &Segment::unlock, nb::arg("index"))
      .def("holds", &Segment::holds, nb::arg("index"), "Whether this process holds it.")
      .def("held", &Segment::held, nb::arg("index"), "Whether any living process holds it.")
      .def("holder", &Segment::holder, nb::arg("index"),
           "The holder's pid, for messages; 0: no holder; -1: a process of another container.")
      .def("load", [](const Segment& s, size_t offset) { return word(s, offset).load(std::memory_order_acquire); },
           nb::arg("offset"), "Load the 4-byte word there (acquire).")
      .def("store", [](const Segment& s, size_t offset, uint32_t value) {
        word(s, offset).store(value, std::memory_order_release);
      }, nb::arg("offset"), nb::arg("value"))
      .def("ring", [](const Segment& s, size_t offset) { futex_wake(word(s, offset)); }, nb::arg("offset"),
           "Add one to the word there and wake all waiting threads.")
      .def("wait", [](const Segment& s, size_t offset, uint32_t seen, double seconds) {
        auto& bell = word(s, offset);
        nb::gil_scoped_release release;
        futex_wait(bell, seen, nanoseconds(seconds));
      }, nb::arg("offset"), nb::arg("seen"), nb::arg("seconds"), "Sleep while the word there is `seen`; may wake early.")
      .def("array", [](const std::shared_ptr<Segment>& s) {
        return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(s->data(), {s->nbytes()}, nb::cast(s));
      }, "The bytes as a writable uint8 array, which keeps the memory mapped.")
      .def("view", [](nb::handle self) { return nb::steal<nb::object>(PyMemoryView_FromObject(self.attr("array")().ptr())); },
           "The bytes as a writable memoryview.")
      .def("__reduce__", [](nb::handle self) {
        return nb::make_tuple(nb::module_::import_("apexrl.shared.segment").attr("attach_segment"), nb::make_tuple(segment_state(*nb::cast<std::shared_ptr<Segment>>(self))));
      })
      .def_static("attach", &segment_from, nb::arg("state"));

  nb::class_<Board>(m, "Board")
      .def_static("create", [](size_t capacity) { return std::make_shared<Board>(Board::create(capacity)); })
      .def_static("attach", [](nb::tuple state) { return std::make_shared<Board>(segment_from(state)); })
      .def("state", [](const Board& b) { return segment_state(*b.segment()); })
      .def_prop_ro("capacity", &Board::capacity)
      .def_prop_ro("version", &Board::version)
      .def_prop_ro("spoilt", &Board::spoilt)
      .def_prop_ro("layout", [](const Board& b) {
        const std::string text = b.layout_text();
        return nb::bytes(text.data(), text.size());
      })
      .def("set_layout", [](Board& b, nb::bytes text) { return b.set_layout(text.c_str(), text.size()); })
      .def("publish",
           [](Board& b, uint64_t version, nb::list arrays) {
             std::vector<Buffer> buffers(nb::len(arrays));
             std::vector<std::pair<const uint8_t*, size_t>> parts;
             size_t total = 0;
             for (size_t i = 0; i < buffers.size(); ++i) {
               if (!buffers[i].get(nb::handle(arrays[i]).ptr()))
                 throw std::invalid_argument("weights must be C-contiguous arrays");
               parts.emplace_back(buffers[i].data<uint8_t>(), size_t(buffers[i].view().len));
               total += parts.back().second;
             }
             if (total > b.capacity()) throw std::invalid_argument("the weights are larger than the board");
             nb::gil_scoped_release release;
             b.publish(version, parts);
           })
      .def("read",
           [](Board& b, uint64_t newer_than, nb::handle out) {
             Buffer buffer;
             if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE))
               throw std::invalid_argument("out must be a writable contiguous array");
             nb::gil_scoped_release release;
             return b.read(newer_than, buffer.data<uint8_t>(), size_t(buffer.view().len));
           })
      .def("wait", [](Board& b, uint64_t seen, double seconds) {
        nb::gil_scoped_release release;
        b.wait(seen, nanoseconds(seconds));
      });

  m.def("draw_choices", [](nb::handle logits, const std::vector<size_t>& nvec, nb::handle uniform, nb::handle chosen,
                           nb::handle log_prob) {
    constexpr int kWritable = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE;
    Buffer from, u, out, probability;
    if (!from.get(logits.ptr()) || !from.is('f', 4) || from.view().ndim != 2)
      throw std::invalid_argument("logits must be float32 [B, sum of nvec]");
    const size_t rows = size_t(from.view().shape[0]), width = size_t(from.view().shape[1]), k = nvec.size();
    size_t sum = 0;
    for (const size_t n : nvec) {
      if (n == 0 || n > width) throw std::invalid_argument("nvec must be the alternatives of each choice in logits");
      sum += n;
    }
    if (sum != width) throw std::invalid_argument("nvec must be the alternatives of each choice in logits");
    if (!u.get(uniform.ptr()) || !u.is('f', 8) || u.view().ndim != 2 || size_t(u.view().shape[0]) != k || u.size() != k * rows)
      throw std::invalid_argument("uniform must be float64 [k, B]");
    if (!out.get(chosen.ptr(), kWritable) || !out.is('i', 8) || out.size() != k * rows)
      throw std::invalid_argument("chosen must be int64 [B, k]");
    if (!probability.get(log_prob.ptr(), kWritable) || !probability.vector('f', 4) || probability.size() != rows)
      throw std::invalid_argument("log_prob must be float32 [B]");
    const float* first = from.data<float>();
    for (size_t i = 0; i < k; first += nvec[i], ++i)
      draw_choices(first, rows, nvec[i], width, u.data<double>() + i * rows, out.data<int64_t>() + i, k,
                   probability.data<float>());
  }, nb::arg("logits"), nb::arg("nvec"), nb::arg("uniform"), nb::arg("chosen"), nb::arg("log_prob"),
     "Draw k choices for each row; `log_prob` is added to.");

  bind_replay(m);
  bind_writer(m);
  bind_chunks(m);

  // Native structures by themselves, which tests compare with NumPy versions.
  struct Tree {
    explicit Tree(size_t n) : leaves(round_up(n, 8)), tree(leaves.data(), leaves.size()) {}
    Zeroed<double> leaves;
    SumTree tree;
  };
  nb::class_<Tree>(m, "SumTree")
      .def(nb::init<size_t>())
      .def("set", [](Tree& t, std::vector<size_t> index, std::vector<double> value) {
        for (size_t i = 0; i < index.size(); ++i) {
          if (index[i] >= t.tree.size()) throw nb::index_error("leaf out of range");
          t.tree.set(index[i], value.at(i));
        }
        t.tree.propagate();
      })
      .def("find", [](Tree& t, std::vector<double> prefix, int version) -> std::optional<std::vector<uint32_t>> {
        const Descend descend = version < 0 ? best_descend() : descend_version(version);
        if (descend == nullptr) return std::nullopt;
        std::vector<uint32_t> leaf(prefix.size());
        t.tree.find(prefix.data(), leaf.data(), prefix.size(), descend);
        return leaf;
      }, nb::arg("prefix"), nb::arg("version") = -1, "Leaves; `version`: 2 AVX-512, 1 AVX2, 0 plain, None without it.")
      .def_prop_ro("least", [](Tree& t) {
        if (!t.tree.tracks_least()) t.tree.track_least();
        return t.tree.least();
      })
      .def_prop_ro("total", [](Tree& t) { return t.tree.total(); })
      .def("check", [](Tree& t) { return t.tree.check(); });
  m.def("process_token", &process_token, "A random number of this process; a forked child has another one.");
  m.def("unheld", [](nb::tuple objects, Py_ssize_t references) {
    for (PyObject **one = &PyTuple_GET_ITEM(objects.ptr(), 0), **end = one + PyTuple_GET_SIZE(objects.ptr()); one != end; ++one)
      if (Py_REFCNT(*one) > references) return false;
    return true;
  }, nb::arg("objects"), nb::arg("references"), "Whether no object has more references than that.");
  m.def("start_writing", [](int fd, int64_t offset, int64_t bytes) {
#if defined(__linux__)
    sync_file_range(fd, offset, bytes, SYNC_FILE_RANGE_WRITE);
#endif
  }, nb::arg("fd"), nb::arg("offset"), nb::arg("bytes"), "Ask the kernel to begin writing a file's pages.");
  m.def("crc32c", [](nb::handle data, bool by_table) {
    Buffer buffer;
    if (!buffer.get(data.ptr())) throw std::invalid_argument("a checksum is of a contiguous array");
    const auto* bytes = buffer.data<uint8_t>();
    const size_t n = size_t(buffer.view().len);
    std::optional<nb::gil_scoped_release> release;
    if (n > (1 << 16)) release.emplace();
    return by_table ? ~crc32c_by_table(~0u, bytes, n) : crc32c(bytes, n);
  }, nb::arg("data"), nb::arg("by_table") = false);
  m.def("powers", [](std::vector<double> values, double eps, double alpha) {
    powers(values.data(), values.data(), values.size(), eps, alpha);
    return values;
  });
}
