// Python bindings of the replay. Short copies keep the GIL; calls that may wait or copy megabytes release it.
#include <cmath>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "bind.h"
#include "power.h"

namespace apexrl {
namespace {

// (column, strategy, share, relabelled, goal, achieved, steps), the last four of them arrays that Python keeps alive.
Hindsight make_hindsight(const View& view, size_t n, nb::tuple wanted) {
  const Geometry& g = view.geometry();
  Hindsight out;
  out.column = nb::cast<uint32_t>(wanted[0]);
  out.strategy = nb::cast<GoalStrategy>(wanted[1]);
  out.share = nb::cast<double>(wanted[2]);
  if (g.kind != Kind::transition || g.sampler == Sampler::fifo || g.remover == Remover::proportional ||
      g.chunk > kMostEpisodeChunk || out.column >= g.columns)
    throw std::invalid_argument("this replay draws no goals in hindsight");
  const size_t bytes = view.header().column[out.column].bytes;
  out.relabelled = writable(wanted[3], n);
  out.goal = writable(wanted[4], n * bytes);
  out.achieved = writable(wanted[5], n * bytes * g.n_step);
  out.steps = reinterpret_cast<int32_t*>(writable(wanted[6], n * 4));
  if (!out.relabelled || !out.goal || !out.achieved || !out.steps) throw std::invalid_argument("an output is missing");
  return out;
}

// Pointers into arrays that Python keeps alive.
std::shared_ptr<Outputs> make_outputs(const PyReplay& replay, size_t n, nb::list columns, nb::list next_columns,
                                      nb::handle reward, nb::handle discount, nb::handle mask, nb::handle first,
                                      nb::handle keys, nb::handle probabilities, nb::handle weights,
                                      nb::handle hindsight) {
  auto out = std::make_shared<Outputs>();
  const View& view = replay.replay->view();
  const Geometry& g = view.geometry();
  const size_t fields = replay.fields.size();
  if (nb::len(columns) != fields || nb::len(next_columns) != fields) throw std::invalid_argument("one output per field is needed");
  out->n = n;
  const bool windows = g.kind == Kind::sequence || g.kind == Kind::unroll;
  const size_t steps = windows ? g.burn_in + g.n_step : 1;
  for (uint32_t c = 0; c < g.columns; ++c) {
    const Column& column = view.header().column[c];
    const size_t bytes = n * column.bytes * frames_of(g, column);
    out->column.push_back(c < fields ? writable(columns[c], bytes) : nullptr);
    out->next_column.push_back(c < fields ? writable(next_columns[c], bytes) : nullptr);
  }
  out->reward = reinterpret_cast<float*>(writable(reward, n * steps * 4));
  out->discount = reinterpret_cast<float*>(writable(discount, n * steps * 4));
  out->mask = writable(mask, n * steps);
  out->first = writable(first, n * (steps + 1));
  if ((g.kind != Kind::rows && (!out->reward || !out->discount)) || (windows && (!out->mask || !out->first)))
    throw std::invalid_argument("an output is missing");
  out->keys = reinterpret_cast<uint64_t*>(writable(keys, n * 8));
  out->probabilities = reinterpret_cast<double*>(writable(probabilities, n * 8));
  out->weights = reinterpret_cast<float*>(writable(weights, n * 4));
  if (!hindsight.is_none()) out->hindsight = make_hindsight(view, n, nb::cast<nb::tuple>(hindsight));
  return out;
}

std::vector<FieldType> field_types(nb::list fields, std::vector<Column>& columns) {
  std::vector<FieldType> types;
  for (nb::handle item : fields) {
    auto [name, kind, itemsize, shape, windowed, sampled, per_item, ragged, compressed] =
        nb::cast<std::tuple<nb::object, std::string, uint32_t, std::vector<Py_ssize_t>, bool, bool, bool, uint32_t, bool>>(item);
    uint64_t bytes = itemsize;
    for (Py_ssize_t d : shape) bytes *= uint64_t(d);
    if (bytes > UINT32_MAX) throw std::invalid_argument("a field is larger than 4 GiB");
    if (compressed && bytes > kLargestInput) throw std::invalid_argument("a compressed field is larger than 0x7E000000 bytes, LZ4's most");
    const uint32_t unit = ragged != 0 ? uint32_t(bytes / uint64_t(shape.at(0))) : compressed;
    columns.push_back(Column{uint32_t(bytes), itemsize, windowed, sampled, 0, per_item, 0, 0, ragged, unit, compressed});
    types.push_back(FieldType{name, kind[0], itemsize, shape, ragged});
  }
  for (size_t c = 0; c < types.size(); ++c)
    if (columns[c].compressed) {
      columns.push_back(Column{4, 4, columns[c].windowed, 0, 0, 0, 0, 0});
      columns[c].ragged = uint32_t(columns.size());
    }
  for (const FieldType& type : types)
    if (type.ragged > types.size()) throw std::invalid_argument("a ragged field has no lengths");
  return types;
}

}  // namespace

void bind_replay(nb::module_& m) {
  nb::enum_<Kind>(m, "Kind")
      .value("rows", Kind::rows)
      .value("transition", Kind::transition)
      .value("sequence", Kind::sequence)
      .value("unroll", Kind::unroll);
  nb::enum_<Sampler>(m, "Sampler")
      .value("prioritized", Sampler::prioritized)
      .value("fifo", Sampler::fifo)
      .value("lifo", Sampler::lifo)
      .value("max_heap", Sampler::max_heap)
      .value("min_heap", Sampler::min_heap);
  nb::enum_<Remover>(m, "Remover")
      .value("fifo", Remover::fifo)
      .value("proportional", Remover::proportional)
      .value("lifo", Remover::lifo)
      .value("max_heap", Remover::max_heap)
      .value("min_heap", Remover::min_heap);
  nb::enum_<GoalStrategy>(m, "GoalStrategy")
      .value("future", GoalStrategy::future)
      .value("final", GoalStrategy::final)
      .value("episode", GoalStrategy::episode);
  nb::enum_<Normalize>(m, "Normalize")
      .value("batch", Normalize::batch)
      .value("buffer", Normalize::buffer)
      .value("none", Normalize::none);
  nb::enum_<SampleStatus>(m, "SampleStatus")
      .value("ok", SampleStatus::ok)
      .value("too_few", SampleStatus::too_few)
      .value("limited", SampleStatus::limited)
      .value("all_zero", SampleStatus::all_zero)
      .value("closed", SampleStatus::closed)
      .value("yielded", SampleStatus::yielded);
  nb::enum_<WriteStatus>(m, "WriteStatus")
      .value("ok", WriteStatus::ok)
      .value("wait", WriteStatus::wait)
      .value("closed", WriteStatus::closed)
      .value("no_lane", WriteStatus::no_lane)
      .value("no_streams", WriteStatus::no_streams)
      .value("publish", WriteStatus::publish)
      .value("irregular", WriteStatus::irregular)
      .value("bad_priority", WriteStatus::bad_priority)
      .value("busy", WriteStatus::busy)
      .value("bad_reward", WriteStatus::bad_reward)
      .value("yielded", WriteStatus::yielded);
  keep_members(SampleStatus::yielded);
  keep_members(WriteStatus::yielded);

  nb::class_<Outputs>(m, "Outputs")
      .def("set_horizon", [](Outputs& out, std::optional<uint32_t> n_step, std::optional<double> gamma) {
        out.n_step = n_step.value_or(UINT32_MAX);
        out.gamma = gamma.value_or(-1.0);
      }, nb::arg("n_step").none(), nb::arg("gamma").none());
  nb::class_<Snapshot>(m, "Snapshot")
      .def_ro("max_priority", &Snapshot::largest)
      .def_ro("inserted", &Snapshot::inserted)
      .def_ro("sampled", &Snapshot::sampled)
      .def_ro("evicted", &Snapshot::evicted)
      .def_ro("deleted", &Snapshot::deleted)
      .def_prop_ro("continues", &Snapshot::continues)
      .def_ro("batches", &Snapshot::batches)
      .def_prop_ro("rng", [](const Snapshot& s) {
        std::vector<uint64_t> words(s.rng.first.state.begin(), s.rng.first.state.end());
        words.insert(words.end(), s.rng.second.state.begin(), s.rng.second.state.end());
        return words;
      });

  nb::class_<PyReplay> replay(m, "Replay");
  replay
      .def_static(
          "create",
          [](nb::list fields, nb::dict sizes, const std::string& json, const std::string& directory) {
            const auto whole = [&](const char* name) { return nb::cast<uint64_t>(sizes[name]); };
            const auto small = [&](const char* name) { return nb::cast<uint32_t>(sizes[name]); };
            const auto real = [&](const char* name) { return nb::cast<double>(sizes[name]); };
            Geometry g{};
            g.kind = nb::cast<Kind>(sizes["kind"]);
            g.sampler = nb::cast<Sampler>(sizes["sampler"]);
            g.remover = nb::cast<Remover>(sizes["remover"]);
            g.independent = small("independent");
            g.consumes = small("consumes");
            g.capacity = whole("capacity");
            g.most = whole("most");
            g.chunk = small("chunk");
            g.chunk_items = small("chunk_items");
            g.behind = small("behind");
            g.ahead = small("ahead");
            g.lanes = small("lanes");
            g.streams = small("streams");
            g.stack = small("stack");
            g.n_step = small("n_step");
            g.burn_in = small("burn_in");
            g.stride = small("stride");
            g.cells = small("cells");
            g.trim_every = small("trim_every");
            g.gamma = real("gamma");
            g.alpha = real("alpha");
            g.eps = real("eps");
            g.remover_alpha = real("remover_alpha");
            g.recency_half_life = real("recency_half_life");
            g.lag_half_life = real("lag_half_life");
            g.version_column = small("version_column");
            g.seed = whole("seed");
            std::vector<Column> columns;
            auto types = field_types(fields, columns);
            const uint64_t min_size = whole("min_size");
            const double samples_per_insert = real("samples_per_insert"), insert_band = real("insert_band");
            std::shared_ptr<Replay> replay;
            {
              nb::gil_scoped_release release;
              replay = Replay::create(g, columns, json, min_size, samples_per_insert, insert_band, directory);
            }
            return std::make_shared<PyReplay>(std::move(replay), std::move(types));
          },
          nb::kw_only(), nb::arg("fields"), nb::arg("sizes"), nb::arg("json"), nb::arg("directory"))
      .def_static("describe", [](nb::tuple state) { return Replay::of(segment_from(state))->json(); },
                  "The JSON that the creator left, for a process about to attach.")
      .def_static("attach", [](nb::tuple state, nb::list fields) {
        std::vector<Column> columns;
        auto types = field_types(fields, columns);
        auto replay = Replay::of(segment_from(state));
        const Header& h = replay->view().header();
        const auto same = [](const Column& a, const Column& b) {
          return std::tie(a.bytes, a.align, a.windowed, a.sampled, a.per_item, a.ragged, a.unit, a.compressed) ==
                 std::tie(b.bytes, b.align, b.windowed, b.sampled, b.per_item, b.ragged, b.unit, b.compressed);
        };
        if (columns.size() != h.geometry.columns || !std::equal(columns.begin(), columns.end(), h.column, same))
          throw std::runtime_error("the replay in " + replay->segment()->name() + " cannot be used: its columns are not its fields");
        return std::make_shared<PyReplay>(std::move(replay), std::move(types));
      })
      .def("state", [](const PyReplay& r) { return segment_state(*r.replay->segment()); })
      .def("segment", [](const PyReplay& r) { return r.replay->segment(); })
      .def("own", [](PyReplay& r, bool provisional) {  // -> 0, or Segment::holder of the living owner
        int holder = 0;
        nb::gil_scoped_release release;
        return r.replay->own(holder, provisional) != nullptr ? 0 : holder != 0 ? holder : -1;
      }, nb::arg("provisional") = false)
      .def_prop_ro("owned", [](PyReplay& r) { return r.replay->owner() != nullptr; })
      .def_prop_ro("owned_elsewhere", [](const PyReplay& r) {
        return r.replay->segment()->held(kOwnerLock) && !r.replay->segment()->holds(kOwnerLock);
      })
      .def("disown", [](PyReplay& r) {
        nb::gil_scoped_release release;
        r.replay->disown();
      })
      .def("shut", [](PyReplay& r) { r.replay->shut(); })
      .def_prop_ro("closed", [](const PyReplay& r) { return r.replay->closed(); })
      .def("size", [](PyReplay& r) {
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        return owner != nullptr ? owner->size() : r.replay->view().size(r.replay->segment()->held(kOwnerLock));
      })
      .def("outputs", &make_outputs, nb::arg("n"), nb::arg("columns"), nb::arg("next_columns"),
           nb::arg("reward").none(), nb::arg("discount").none(), nb::arg("mask").none(), nb::arg("first").none(),
           nb::arg("keys"), nb::arg("probabilities"), nb::arg("weights"), nb::arg("hindsight") = nb::none())
      .def("sample", [](PyReplay& r, Outputs& out, double beta, Normalize normalize, bool outstanding) {
        const auto owner = r.replay->owner();
        if (owner == nullptr) return member(SampleStatus::yielded);
        nb::gil_scoped_release release;
        return member(owner->sample(beta, out, normalize, outstanding));
      }, nb::arg("outputs"), nb::arg("beta"), nb::arg("normalize") = Normalize::batch, nb::arg("outstanding") = false)
      .def("done", [](PyReplay& r, uint64_t items, bool lost) {
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        if (owner) lost ? owner->lose(items) : owner->done(items);
      }, nb::arg("items"), nb::arg("lost"))
      .def("adopt", [](PyReplay& r, uint64_t items) {
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        if (owner) owner->adopt(items);
      })
      .def("update", [](PyReplay& r, nb::handle keys, nb::handle priorities) {  // -> (status, applied or bad, stale)
        const auto owner = r.replay->owner();
        if (owner == nullptr) return std::make_tuple(member(WriteStatus::yielded), size_t(0), size_t(0));
        Buffer k;
        if (!k.get(keys.ptr()) || !k.vector('u', 8)) return std::make_tuple(member(WriteStatus::irregular), size_t(0), size_t(0));
        static thread_local std::vector<double> powered;
        size_t bad = 0;
        const WriteStatus status =
            power_priorities(priorities.ptr(), k.size(), r.replay->view().geometry(), powered, bad);
        if (status != WriteStatus::ok) return std::make_tuple(member(status), bad, size_t(0));
        size_t applied = 0, stale = 0;
        nb::gil_scoped_release release;
        const bool done = owner->update(k.data<uint64_t>(), powered.data(), k.size(), applied, stale);
        return std::make_tuple(member(done ? WriteStatus::ok : WriteStatus::yielded), applied, stale);
      })
      .def("wait", [](PyReplay& r, double seconds) {
        const auto owner = r.replay->owner();
        nb::gil_scoped_release release;
        if (owner != nullptr) owner->wait_for_items(nanoseconds(seconds));
      })
      .def("set_limiter", [](PyReplay& r, uint64_t min_size, double spi, double band) {  // false: not the owner
        const auto owner = r.replay->owner();
        if (owner == nullptr) return false;
        nb::gil_scoped_release release;
        return owner->set_limiter(min_size, spi, band);
      })
      .def("restore_limiter", [](PyReplay& r, double error, double offset) {
        r.replay->view().header().error_buffer.store(error);
        r.replay->view().header().diff_offset.store(offset);
      })
      .def("check", [](PyReplay& r) {
        const auto owner = r.replay->owner();
        return owner == nullptr ? 0.0 : owner->check();
      })
      .def("counters", [](PyReplay& r) {
        const Header& h = r.replay->view().header();
        const Geometry& g = r.replay->view().geometry();
        uint32_t lanes = 0;
        for (uint32_t l = 0; l < g.lanes; ++l) lanes += r.replay->view().lane(l).active.load();
        nb::dict d;
        d["inserted"] = h.inserted.load();
        d["sampled"] = h.sampled.load();
        d["evicted"] = h.evicted.load();
        d["deleted"] = h.deleted.load();
        d["updates_applied"] = h.updates_applied.load();
        d["updates_stale"] = h.updates_stale.load();
        d["epoch"] = h.epoch.load();
        d["owner_pid"] = r.replay->segment()->holder(kOwnerLock);
        d["lanes"] = g.lanes;
        d["lanes_active"] = lanes;
        d["lanes_reclaimed"] = h.lanes_reclaimed.load();
        const auto owner = r.replay->owner();
        double mass = 0.0;  // known only to the owner
        if (owner != nullptr) {
          nb::gil_scoped_release release;
          mass = owner->mass();
        }
        d["mass"] = mass;
        d["provisional"] = h.provisional.load() != 0;
        d["dropped_steps"] = h.dropped_steps.load();
        d["lost"] = h.lost.load();
        d["damaged_words"] = h.damaged.load();
        d["max_priority"] = max_priority(h);
        d["min_size"] = h.min_size.load();
        d["samples_per_insert"] = h.samples_per_insert.load();
        d["error_buffer"] = h.error_buffer.load();
        d["insert_band"] = h.insert_band.load();
        d["diff_offset"] = h.diff_offset.load();
        d["next_order"] = h.next_order.load();
        d["chunk"] = g.chunk;
        d["chunk_items"] = g.chunk_items;
        d["slots"] = g.slots;
        d["slots_used"] = std::min<uint64_t>(h.next_unused.load(), g.slots);
        d["slot_bytes"] = g.slot_bytes;
        d["leaves_per_slot"] = g.leaves;
        d["bytes"] = g.total;
        d["ragged_bytes"] = h.blocks_touched.load() * g.block;
        d["ragged_bytes_per_slot"] = uint64_t(g.block) * g.slot_blocks;
        d["bytes_when_full"] = bytes_when_full(g);
        d["growth_refused"] = h.growth_refused.load();
        return d;
      })
      .def("snapshot", [](PyReplay& r, const Snapshot* since) -> std::optional<Snapshot> {  // none: not the owner
        const auto owner = r.replay->owner();
        Snapshot all;
        nb::gil_scoped_release release;
        if (owner == nullptr || !owner->snapshot(all, since)) return std::nullopt;
        return all;
      }, nb::arg("since").none() = nb::none())
      .def("snapshot_block", [](PyReplay& r, Snapshot& all, nb::handle out) {  // -> entries and their bytes; -1: not the owner
        Buffer buffer;
        if (!buffer.get(out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)) throw std::invalid_argument("out must be writable");
        const auto owner = r.replay->owner();
        size_t written = 0, bytes = size_t(buffer.view().len);
        nb::gil_scoped_release release;
        if (owner == nullptr || !owner->snapshot_block(all, buffer.data<uint8_t>(), bytes, written)) return std::make_pair(int64_t(-1), size_t(0));
        return std::make_pair(int64_t(written), bytes);
      })
      .def("restore_block", [](PyReplay& r, nb::handle block, size_t count) {
        Buffer buffer;
        if (!buffer.get(block.ptr())) throw std::invalid_argument("a block is a contiguous array");
        nb::gil_scoped_release release;
        r.replay->restore_block(buffer.data<uint8_t>(), size_t(buffer.view().len), count);
      })
      .def_prop_ro("snapshot_entry_bytes", [](const PyReplay& r) { return snapshot_entry_bytes(r.replay->view().geometry()); })
      .def_prop_ro("snapshot_entry_most", [](const PyReplay& r) { return snapshot_entry_most(r.replay->view()); })
      .def("finish_restore", [](PyReplay& r, uint64_t largest) { r.replay->finish_restore(largest); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("largest_generation", [](const PyReplay& r) { return r.replay->largest_generation(); },
           nb::call_guard<nb::gil_scoped_release>())
      .def("restore_counters", [](PyReplay& r, uint64_t inserted, uint64_t sampled, uint64_t evicted, uint64_t deleted, double largest) {
        Header& h = r.replay->view().header();
        h.inserted.store(inserted);
        h.sampled.store(sampled);
        h.evicted.store(evicted);
        h.deleted.store(deleted);
        raise_max_priority(h, largest);
      })
      .def("restore_draws", [](PyReplay& r, uint64_t batches, std::vector<uint64_t> words) {
        if (words.size() != 8) throw std::invalid_argument("the RNG state has eight words");
        Rng draws(0), removal(0);
        std::copy_n(words.begin(), 4, draws.state.begin());
        std::copy_n(words.begin() + 4, 4, removal.state.begin());
        r.replay->owner()->set_rng_state(draws, removal);
        r.replay->owner()->set_batches(batches);
      });
  bind_items(replay);

}

}  // namespace apexrl
