// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Sharded sets as people have them: links into the cache of a hub, downloads that are not complete,
// indices that do not fit their shards.
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/make_model.h"
#include "checkpoint/model_files.h"
#include "moebius/checkpoint.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {
namespace {

using nlohmann::json;

// A model of two MoE layers in several shards.
class Shards : public ::testing::Test {
 protected:
  void SetUp() override {
    const json config = {{"hidden_size", 64},        {"moe_intermediate_size", 32},
                         {"num_experts_per_tok", 1}, {"num_hidden_layers", 2},
                         {"num_experts", 4},         {"dtype", "bfloat16"},
                         {"model_type", "qwen3_moe"}};
    checkpoint::write_model(config, "x", 1, dir_.path(), 32 << 10);
    index_ = json::parse(read_text(index_path()));
    for (const auto& [name, shard] : index_["weight_map"].items()) {
      shards_.insert(shard.get<std::string>());
    }
    ASSERT_GE(shards_.size(), 3u);
  }

  fs::path index_path() const { return dir_ / checkpoint::kIndexFile; }
  std::string shard_of(const std::string& tensor) const { return index_["weight_map"][tensor]; }
  void write_index() const { write_text(index_path(), index_.dump()); }
  std::string refusal(int64_t layer = 0) const {
    return message_of([&] { Checkpoint(dir_.path()).load_layer(layer); });
  }

  const std::string first_ = "model.layers.0.mlp.experts.0.gate_proj.weight";
  const std::string last_ = "model.layers.1.mlp.experts.3.up_proj.weight";
  TempDir dir_;
  json index_;
  std::set<std::string> shards_;
};

TEST_F(Shards, ThatNobodyTouchesMayBeMissing) {
  fs::remove(dir_ / shard_of(last_));
  const Checkpoint checkpoint(dir_.path());
  EXPECT_EQ(checkpoint.load_layer(0).experts.w1.shape(), (Shape{4, 64, 64}));
  expect_mentions(message_of([&] { checkpoint.load_layer(1); }),
                  {index_path().string(), "shard '" + shard_of(last_) + "'",
                   "which holds 'model.layers.1.mlp", "is missing"});
}

TEST_F(Shards, NameTheLinkThatLeadsNowhere) {
  const fs::path shard = dir_ / shard_of(first_);
  fs::remove(shard);
  fs::create_symlink("../../blobs/0123abcd", shard);
  expect_mentions(refusal(), {"shard '" + shard_of(first_) + "'",
                              "is a link to ../../blobs/0123abcd, which is missing"});
}

TEST_F(Shards, AreReadThroughTheLinksOfACache) {
  const Tensor expected = Checkpoint(dir_.path()).load_layer(1).experts.w1;
  const TempDir cache;
  const fs::path snapshot = cache / "snapshots/0f1e2d";
  fs::create_directories(snapshot);
  fs::create_directories(cache / "blobs");
  int blob = 0;
  for (const auto& file : fs::directory_iterator(dir_.path())) {
    const std::string name = "blob" + std::to_string(blob++);
    fs::copy(file.path(), cache / "blobs" / name);
    fs::create_symlink("../../blobs/" + name, snapshot / file.path().filename());
  }
  const Tensor loaded = Checkpoint(snapshot).load_layer(1).experts.w1;
  EXPECT_EQ(std::memcmp(loaded.raw(), expected.raw(), static_cast<size_t>(loaded.nbytes())), 0);

  // The root of the cache is no model, but the message says where it is.
  fs::create_directories(cache / "refs");
  write_text(cache / "refs/main", "0f1e2d");
  fs::create_directories(cache / "snapshots/older");
  for (const auto& open : {std::function<void()>([&] { Checkpoint model(cache.path()); }),
                           std::function<void()>([&] { Safetensors files(cache.path()); })}) {
    expect_mentions(message_of(open),
                    {"is the root of a model in a hub's cache; the model is " + snapshot.string()});
  }
  fs::remove(cache / "refs/main");  // two snapshots, and nothing says which
  expect_mentions(message_of([&] { Safetensors files(cache.path()); }), "has neither");
  fs::remove(cache / "snapshots/older");
  EXPECT_EQ(checkpoint::cached_snapshot(cache.path()), snapshot);
}

TEST_F(Shards, SayWhereATensorIsThatTheIndexPutsElsewhere) {
  index_["weight_map"][last_] = shard_of(first_);
  const fs::path first = dir_ / shard_of(first_);
  const std::string real = json::parse(read_text(index_path()))["weight_map"][last_];
  write_index();
  expect_mentions(refusal(),
                  {first.string(), "tensor '" + last_ + "' is missing",
                   "model.safetensors.index.json says it is here, but it is in '" + real + "'"});
}

TEST_F(Shards, OfAnotherSetAreNotSearchedForever) {
  index_["weight_map"]["model.norm.weight"] = shard_of(first_);
  write_index();
  const std::string message = refusal();
  expect_mentions(message, {"tensor 'model.norm.weight' is missing", "says it is here"});
  EXPECT_EQ(message.find("but it is in"), std::string::npos) << message;
}

TEST_F(Shards, ThatTheIndexDoesNotNameAreIgnored) {
  write_safetensors(dir_ / "consolidated.safetensors", {{first_, Tensor::zeros({1}, DType::kF32)}});
  const Safetensors files(dir_.path());
  EXPECT_EQ(files.entry(first_).shape, (Shape{32, 64}));
  EXPECT_EQ(files.files().size(), shards_.size());
  EXPECT_EQ(checkpoint::unused_shards(dir_.path(), files.files()),
            std::vector<std::string>{"consolidated.safetensors"});
}

TEST_F(Shards, OfASecondCopyOfATensorOnlyTheIndexedOneCounts) {
  write_safetensors(dir_ / "copy.safetensors", {{first_, Tensor::zeros({32, 64}, DType::kF32)},
                                                {last_, Tensor::zeros({32, 64}, DType::kF32)}});
  index_["weight_map"][first_] = "copy.safetensors";
  write_index();
  const Safetensors files(dir_.path());
  EXPECT_EQ(files.entry(first_).dtype, DType::kF32);
  EXPECT_EQ(files.entry(last_).dtype, DType::kBF16);
}

TEST_F(Shards, WithoutAnIndexAreCounted) {
  fs::remove(index_path());
  expect_mentions(refusal(), {"has neither model.safetensors nor model.safetensors.index.json",
                              "but " + std::to_string(shards_.size()) + " that need an index",
                              *shards_.begin()});
}

// transformers prefers the single file, too.
TEST_F(Shards, AreNotReadBesideASingleFile) {
  write_safetensors(dir_ / checkpoint::kSingleFile, {{"a", Tensor::zeros({1}, DType::kF32)}});
  EXPECT_EQ(Safetensors(dir_.path()).names(), std::vector<std::string>{"a"});
  expect_mentions(message_of([&] { Safetensors(dir_.path()).entry(first_); }),
                  {(dir_ / checkpoint::kSingleFile).string(), "is missing",
                   "model.safetensors.index.json beside it is not read"});
}

TEST_F(Shards, OfAnIndexThatIsADeadLinkAreNamed) {
  fs::remove(index_path());
  fs::create_symlink("../../blobs/77", index_path());
  expect_mentions(refusal(),
                  {index_path().string(), "is a link to ../../blobs/77, which is missing"});
}

}  // namespace
}  // namespace moebius::testing
