// Python bindings of chunks sent to and received from other hosts.
#include "bind.h"
#include "chunk_heads.h"
#include "inbox.h"

namespace apexrl {
namespace {

using HeadTuple = std::tuple<uint64_t, uint64_t, uint32_t, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t>;

class PyInbox {
 public:
  PyInbox(std::shared_ptr<PyReplay> replay, uint32_t streams, std::shared_ptr<Segment> receipts)
      : replay_(std::move(replay)), inbox_(replay_->replay->segment(), streams, std::move(receipts)) {}

  WriteStatus lease() { return inbox_.leased() ? WriteStatus::ok : inbox_.lease(); }
  void release() { inbox_.release(); }
  bool leased() const { return inbox_.leased(); }
  void close(uint32_t stream) {
    if (stream >= inbox_.streams()) throw nb::index_error("no such stream");
    if (inbox_.leased()) inbox_.close(stream);
  }
  // `streams`: of each of the heads' sources. -> (status of the last chunk, chunks that are done with, why one is refused)
  std::tuple<CommitStatus, size_t, const char*> commit_frame(const std::vector<uint32_t>& streams, const ChunkHeads& chunks,
                                                             nb::handle body, uint32_t account, uint64_t sequence,
                                                             uint64_t item, size_t done) {
    Buffer buffer;
    if (!buffer.get(body.ptr(), PyBUF_C_CONTIGUOUS)) throw std::invalid_argument("a body is contiguous bytes");
    const auto& heads = chunks.heads;
    const auto& places = chunks.places();
    bool known = streams.size() == chunks.sources().size() && account < inbox_.accounts();
    for (const uint32_t stream : streams) known = known && stream < inbox_.streams();
    if (!known) throw nb::index_error("no such stream or account");
    if (!inbox_.leased()) return {CommitStatus::closed, done, nullptr};
    const char* why = nullptr;
    const auto* bytes = buffer.data<uint8_t>();
    const size_t size = size_t(buffer.view().len);
    size_t sound = waiting_.is(heads, buffer) ? waiting_.sound : 0;
    CommitStatus answer;
    {
      nb::gil_scoped_release release;
      const auto commit = [&] { return inbox_.commit(streams.data(), places.data(), heads, bytes, size, account, sequence, item, done, sound, why); };
      answer = commit();
      const auto owner = answer == CommitStatus::wait ? replay_->replay->owner() : nullptr;
      while (owner != nullptr && answer == CommitStatus::wait) {  // an owner in this process serves its own workers at once
        const size_t before = done;
        owner->serve();
        answer = commit();
        if (done == before) break;
      }
    }
    waiting_ = {};
    if (answer == CommitStatus::wait && buffer.view().readonly) {
      waiting_ = {heads, std::make_unique<Buffer>(), sound};
      waiting_.body->get(body.ptr(), PyBUF_C_CONTIGUOUS);
    }
    return {answer, done, why};
  }
  bool all_settled() {
    replay_->serve_here();
    return inbox_.all_settled();
  }
  void wait(double seconds) {
    if (!inbox_.leased()) return;
    nb::gil_scoped_release release;
    inbox_.wait(nanoseconds(seconds));
  }

 private:
  // A frame for which there was no room. Its bytes are held, so that they stay where and what they are: they are checked once.
  struct Waiting {
    std::vector<ChunkHead> heads;
    std::unique_ptr<Buffer> body;
    size_t sound = 0;  // as Inbox::commit has it

    bool is(const std::vector<ChunkHead>& its, const Buffer& other) const {
      const Py_buffer& now = other.view();
      return body != nullptr && now.readonly && body->view().buf == now.buf && body->view().len == now.len && heads == its;
    }
  };

  std::shared_ptr<PyReplay> replay_;
  Inbox inbox_;
  Waiting waiting_;
};

nb::object row_of(const ChunkHead& c) {
  return nb::module_::import_("apexrl.protocols").attr("ChunkHead")(c.source, c.slot_generation, c.first, c.positions, c.rows,
                                                                    c.cells, c.items, c.bytes);
}

ChunkHeads heads_of(const std::vector<HeadTuple>& rows) {
  ChunkHeads made;
  for (const auto& [source, slot_generation, first, positions, rows_, cells, items, bytes] : rows)
    made.heads.push_back({source, slot_generation, first, positions, rows_, cells, items, bytes});
  return made;
}

}  // namespace

void bind_chunks(nb::module_& m) {
  nb::enum_<CommitStatus>(m, "CommitStatus")
      .value("done", CommitStatus::done)
      .value("wait", CommitStatus::wait)
      .value("closed", CommitStatus::closed)
      .value("repeated", CommitStatus::repeated)
      .value("refused", CommitStatus::refused);
  m.attr("MOST_CHUNKS") = kMostChunks;
  nb::class_<ChunkHeads>(m, "ChunkHeads")
      .def("__init__", [](ChunkHeads* self, const std::vector<HeadTuple>& rows) { new (self) ChunkHeads(heads_of(rows)); },
           nb::arg("rows"))
      .def_static("unpack", [](nb::handle data) -> nb::object {
        Buffer buffer;
        ChunkHeads made;
        if (!buffer.get(data.ptr(), PyBUF_C_CONTIGUOUS) || !made.unpack(buffer.data<uint8_t>(), size_t(buffer.view().len)))
          return nb::none();
        return nb::cast(std::move(made));
      }, nb::arg("data"))
      .def("pack", [](const ChunkHeads& self) {
        const auto out = self.packed();
        return nb::bytes(reinterpret_cast<const char*>(out.data()), out.size());
      })
      .def("__len__", [](const ChunkHeads& self) { return self.heads.size(); })
      .def("__getitem__", [](const ChunkHeads& self, size_t i) {
        if (i >= self.heads.size()) throw nb::index_error();
        return row_of(self.heads[i]);
      }, nb::arg("index"))
      .def("__iter__", [](nb::handle self) { return nb::steal(PySeqIter_New(self.ptr())); })
      .def("items", &ChunkHeads::items, nb::arg("begin") = 0)
      .def_prop_ro("nbytes", &ChunkHeads::bytes)
      .def_static("joined", [](const std::vector<const ChunkHeads*>& parts) {
        ChunkHeads made;
        for (const ChunkHeads* part : parts) made.heads.insert(made.heads.end(), part->heads.begin(), part->heads.end());
        return made;
      }, nb::arg("parts"))
      .def_prop_ro("sources", &ChunkHeads::sources);

  // -> (status, heads, concatenated bodies)
  m.def("take_chunks", [](PyReplay& r, double linger, uint64_t most, uint64_t allowed) {
    static thread_local std::vector<uint8_t, Unfilled<uint8_t>> out;
    ChunkHeads chunks;
    const auto owner = r.replay->owner();
    SampleStatus status = SampleStatus::yielded;
    if (owner != nullptr) {
      nb::gil_scoped_release release;
      status = owner->take_chunks(nanoseconds(linger), most, allowed, chunks.heads, out);
    }
    const bool some = status == SampleStatus::ok;
    const nb::bytes body(reinterpret_cast<const char*>(out.data()), some ? out.size() : 0);
    return nb::make_tuple(status, std::move(chunks), body);
  }, nb::arg("replay"), nb::arg("linger"), nb::arg("most"), nb::arg("allowed"));
  m.def("receipts_bytes", &Receipts::bytes, nb::arg("accounts"));

  nb::class_<PyInbox>(m, "Inbox")
      .def(nb::init<std::shared_ptr<PyReplay>, uint32_t, std::shared_ptr<Segment>>(), nb::arg("replay"), nb::arg("streams"),
           nb::arg("receipts"))
      .def("lease", &PyInbox::lease)
      .def("release", &PyInbox::release)
      .def_prop_ro("leased", &PyInbox::leased)
      .def("close", &PyInbox::close, nb::arg("stream"))
      .def("commit_frame", &PyInbox::commit_frame, nb::arg("streams"), nb::arg("heads"), nb::arg("body"), nb::arg("account"),
           nb::arg("sequence"), nb::arg("item"), nb::arg("done"))
      .def("all_settled", &PyInbox::all_settled)
      .def("wait", &PyInbox::wait, nb::arg("seconds"));
}

}  // namespace apexrl
