// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
#include "moebius/safetensors.h"

#include <sys/stat.h>

#include <numeric>

#include "tests/by_name.h"
#include "tests/checkpoint/checkpoint_testing.h"

namespace moebius::testing {
namespace {

struct BadHeader {
  const char* name;
  std::string header;
  std::vector<std::string_view> parts;  // of the message
  size_t num_bytes = 4;                 // of data
};

void PrintTo(const BadHeader& bad, std::ostream* out) {
  *out << bad.name;
}

class SafetensorsHeader : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsHeader, IsRefusedWithFileTensorAndValues) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  write_text(path, raw_safetensors(GetParam().header, std::string(GetParam().num_bytes, '\1')));
  const std::string message = message_of([&] { Safetensors file(path); });
  expect_mentions(message, path.string());
  for (const std::string_view part : GetParam().parts) {
    expect_mentions(message, part);
  }
}

// A header with the tensor "a" alone; shape and offsets are JSON.
std::string header_of(const std::string& dtype,
                      const std::string& shape,
                      const std::string& offsets) {
  return R"({"a":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

// The shape [4, 1, 1, ...] with `n` further dimensions.
std::string with_ones(int n) {
  std::string text = "[4";
  for (int i = 0; i < n; ++i) {
    text += ",1";
  }
  return text + "]";
}

const BadHeader kBadHeaders[] = {
    {"Overlap",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
         "b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
     {"'a' [0, 4)", "'b' [2, 4)", "overlap"}},
    {"Hole",
     R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
         "b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
     {"[1, 2)", "'b'", "belong to no tensor"}},
    {"HoleAtTheEnd", header_of("U8", "[3]", "[0,3]"), {"[3, 4)", "end of the data"}},
    {"DataPastTheEnd", header_of("U8", "[5]", "[0,5]"), {"'a'", "byte 5", "has 4"}},
    {"EndBeforeBegin", header_of("U8", "[1]", "[3,2]"), {"'a'", "begin at 3", "end 2"}},
    {"SizeContradictsShape",
     header_of("F32", "[2]", "[0,4]"),
     {"'a'", "[2] of F32 is 8 bytes", "[0, 4] are 4"}},
    {"ShapeOverflow",
     header_of("F32", "[4294967296,4294967296,4]", "[0,0]"),
     {"'a'", "[4294967296, 4294967296, 4]", "more bytes than can be addressed"},
     0},
    {"ShapeOverflowBehindAZero",
     header_of("F32", "[0,18446744073709551615]", "[0,0]"),
     {"'a'", "more bytes than can be addressed"},
     0},
    {"OffsetBeyond64Bits",
     header_of("U8", "[4]", "[0,18446744073709551620]"),
     {"'a'", "data_offsets is 18446744073709551620", "integers"}},
    {"ManyDimensions",
     header_of("U8", with_ones(32), "[0,4]"),
     {"'a'", "shape has 33 dimensions, expected at most 32"}},
    {"UnknownDtype", header_of("F12", "[4]", "[0,4]"), {"'a'", "'F12'"}},
    {"OddNibbles", header_of("F4", "[3,3]", "[0,4]"), {"'a'", "[3, 3]", "multiple of 2", "F4"}},
    {"SixBitsNotInFours", header_of("F6_E2M3", "[6]", "[0,4]"), {"'a'", "[6]", "multiple of 4"}},
    {"NegativeDimension", header_of("U8", "[-4]", "[0,4]"), {"'a'", "shape is -4", "at least 0"}},
    {"FractionalDimension", header_of("U8", "[4.5]", "[0,4]"), {"'a'", "shape is 4.5", "integers"}},
    {"DimensionIsText", header_of("U8", "[\"4\"]", "[0,4]"), {"'a'", "shape is '4'"}},
    {"ShapeIsANumber", header_of("U8", "4", "[0,4]"), {"'a'", "shape is 4", "a list"}},
    {"NestedShape", header_of("U8", "[[4]]", "[0,4]"), {"'a'", "a list"}},
    {"ThreeOffsets", header_of("U8", "[4]", "[0,4,4]"), {"'a'", "3 values, expected 2"}},
    {"DtypeIsANumber",
     R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})",
     {"'a'", "dtype is 8", "a string"}},
    {"DtypeMissing", R"({"a":{"shape":[4],"data_offsets":[0,4]}})", {"'a'", "dtype is missing"}},
    {"ShapeMissing", R"({"a":{"dtype":"U8","data_offsets":[0,4]}})", {"'a'", "shape is missing"}},
    {"OffsetsMissing", R"({"a":{"dtype":"U8","shape":[4]}})", {"'a'", "data_offsets is missing"}},
    {"UnknownField",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"x":1}})",
     {"'a'", "unknown field 'x'"}},
    {"DuplicateName",
     R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},
         "a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
     {"'a' appears twice"}},
    {"DuplicateField",
     header_of("U8", "[4],\"shape\":[2,2]", "[0,4]"),
     {"'shape' appears twice in 'a'"}},
    {"DuplicateMetadata",
     R"({"__metadata__":{},"__metadata__":{}})",
     {"'__metadata__' appears twice"},
     0},
    {"MetadataNotText", R"({"__metadata__":{"n":1}})", {"__metadata__", "n is 1", "a string"}, 0},
    {"MetadataIsText", R"({"__metadata__":"x"})", {"__metadata__", "an object"}, 0},
    {"EntryIsAList", R"({"a":[1]})", {"'a'", "a list", "an object"}, 0},
    {"HeaderIsAList", "[1]", {"a list", "an object"}, 0},
    {"HeaderIsNull", "null", {"null", "an object"}, 0},
    {"NotJson", "{\"a\":", {"not valid JSON", "byte 6"}, 0},
    {"TwoObjects", "{} {}", {"not valid JSON"}, 0},
    {"InvalidUtf8", "{\"\xff\":1}", {"not valid JSON"}, 0},
    {"Empty", "", {"not valid JSON"}, 0},
    {"DeepNesting", std::string(100000, '['), {"a list", "an object"}, 0},
    {"NameWithLineBreak",
     R"({"a\nb":{"dtype":"X","shape":[4],"data_offsets":[0,4]}})",
     {R"('a\x0ab')"}},
    {"NumberBeyondDouble",
     R"({"a":{"dtype":"U8","shape":[1e400],"data_offsets":[0,4]}})",
     {"tensor 'a': shape is 1e400, expected integers of at least 0"}},
};

INSTANTIATE_TEST_SUITE_P(Safetensors, SafetensorsHeader, ::testing::ValuesIn(kBadHeaders), by_name);

TEST(Safetensors, RefusesWrongLengths) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  const auto refusal = [&](const std::string& content) {
    write_text(path, content);
    const std::string message = message_of([&] { Safetensors file(path); });
    expect_mentions(message, path.string());
    return message;
  };
  expect_mentions(refusal(""), "truncated: 0 bytes");
  expect_mentions(refusal("1234567"), "truncated: 7 bytes");
  std::string file = raw_safetensors("{}", "");
  file[0] = 3;
  expect_mentions(refusal(file), "header length is 3, the file has 2 bytes after it");
  file = raw_safetensors("{}", "");
  file[4] = 1;
  expect_mentions(refusal(file), "header length is 4294967298, the limit is 100000000");
  file[7] = '\xff';
  expect_mentions(refusal(file), "the limit is 100000000");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempDir dir;
  expect_mentions(message_of([&] { Safetensors file(dir / "none.safetensors"); }),
                  "none.safetensors: No such file");
  expect_mentions(message_of([&] { Safetensors file(dir.path()); }),
                  "has neither model.safetensors nor model.safetensors.index.json");
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_mentions(message_of([&] { Safetensors file(dir / "pipe"); }), "not a regular file");
}

TEST(Safetensors, ReadsBackWhatWasWritten) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  std::vector<std::pair<std::string, Tensor>> tensors;
  // Tensors of single bytes come first: the writer must order tensors so that all are aligned.
  for (const DType dtype : {DType::kU8, DType::kI8, DType::kBool, DType::kF8E4M3, DType::kF8E5M2,
                            DType::kE8M0, DType::kF4E2M1, DType::kF6E3M2, DType::kF6E2M3,
                            DType::kBF16, DType::kF16, DType::kI64, DType::kF32, DType::kI32}) {
    const Tensor tensor = Tensor::empty({3, 4}, dtype);
    for (int64_t i = 0; i < tensor.nbytes(); ++i) {
      tensor.bytes()[i] = static_cast<std::byte>((7 * i + static_cast<int64_t>(dtype)) % 2);
    }
    tensors.emplace_back(std::string(name(dtype)), tensor);
  }
  tensors.emplace_back("scalar", Tensor::zeros({}, DType::kF32));
  tensors.emplace_back("nothing", Tensor::zeros({0, 5}, DType::kBF16));
  write_safetensors(path, tensors, {{"format", "pt"}});

  const Safetensors file(path);
  EXPECT_EQ(file.names().size(), tensors.size());
  for (const auto& [name, expected] : tensors) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(file.contains(name));
    EXPECT_EQ(file.file_of(name), path);
    const Tensor actual = file.tensor(name);
    EXPECT_EQ(actual.shape(), expected.shape());
    EXPECT_EQ(actual.dtype(), expected.dtype());
    ASSERT_EQ(actual.nbytes(), expected.nbytes());
    EXPECT_EQ(std::memcmp(actual.raw(), expected.raw(), static_cast<size_t>(actual.nbytes())), 0);
    // The tensor is a view of the file and no copy.
    EXPECT_EQ(actual.raw(), file.bytes(name).raw());
  }
  EXPECT_FALSE(file.contains("other"));
  expect_mentions(message_of([&] { file.tensor("other"); }), "tensor 'other' is missing");
  // The folder holds nothing but the file.
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(Safetensors, NamesAreSorted) {
  const TempDir dir;
  write_safetensors(dir / "x.safetensors", {{"b", Tensor::zeros({1}, DType::kU8)},
                                            {"a", Tensor::zeros({1}, DType::kF32)},
                                            {"c", Tensor::zeros({1}, DType::kI64)}});
  EXPECT_EQ(Safetensors(dir / "x.safetensors").names(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(Safetensors, CopiesOnlyWhatIsNotAligned) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  // The data follows 8 bytes and the header, so padding the header gives every offset modulo 4.
  for (size_t pad = 0; pad < 4; ++pad) {
    std::string header = header_of("F32", "[2]", "[0,8]");
    header.append(pad, ' ');
    const float values[2] = {1.5f, -2.0f};
    write_text(path, raw_safetensors(header, {reinterpret_cast<const char*>(values), 8}));
    const Safetensors file(path);
    const Tensor tensor = file.tensor("a");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.raw()) % 4, 0u);
    EXPECT_EQ(tensor.data<float>()[0], 1.5f);
    EXPECT_EQ(tensor.data<float>()[1], -2.0f);
    EXPECT_EQ(tensor.raw() == file.bytes("a").raw(), (8 + header.size()) % 4 == 0);
  }
}

TEST(Safetensors, TensorsOutliveTheReader) {
  const TempDir dir;
  write_safetensors(dir / "x.safetensors", {{"a", Tensor::zeros({1000}, DType::kI32)}});
  Tensor tensor;
  {
    const Safetensors file(dir / "x.safetensors");
    tensor = file.tensor("a");
  }
  EXPECT_EQ(tensor.data<int32_t>()[999], 0);
}

TEST(Safetensors, ReleasedTensorsAreReadAgain) {
  const TempDir dir;
  const Tensor numbers = Tensor::empty({100000}, DType::kI32);
  std::iota(numbers.data<int32_t>(), numbers.data<int32_t>() + numbers.numel(), 0);
  write_safetensors(dir / "x.safetensors", {{"a", numbers}, {"b", Tensor::zeros({3}, DType::kU8)}});
  const Safetensors file(dir / "x.safetensors");
  const Tensor tensor = file.tensor("a");
  file.release("a");
  file.release("b");
  file.release("a", 10, 20);
  EXPECT_EQ(tensor.data<int32_t>()[0], 0);
  EXPECT_EQ(tensor.data<int32_t>()[99999], 99999);
  expect_mentions(message_of([&] { file.release("a", 0, 400001); }), "400000 bytes");
}

TEST(Safetensors, PassesForeignTypesThroughAsBytes) {
  const TempDir dir;
  write_text(dir / "x.safetensors",
             raw_safetensors(header_of("F64", "[1]", "[0,8]"), std::string(8, '\7')));
  const Safetensors file(dir / "x.safetensors");
  EXPECT_EQ(file.entry("a").dtype_name, "F64");
  EXPECT_EQ(file.entry("a").shape, Shape{1});
  EXPECT_EQ(file.tensor("a").dtype(), DType::kU8);
  EXPECT_EQ(file.tensor("a").shape(), Shape{8});
}

TEST(Safetensors, MergesTheFirstOfManyDimensions) {
  const TempDir dir;
  write_text(dir / "x.safetensors",
             raw_safetensors(header_of("U8", "[2,1,3,1,2,1]", "[0,12]"), std::string(12, '\0')));
  EXPECT_EQ(Safetensors(dir / "x.safetensors").tensor("a").shape(), (Shape{6, 1, 2, 1}));
  write_text(dir / "x.safetensors",
             raw_safetensors(header_of("U8", with_ones(31), "[0,4]"), std::string(4, '\1')));
  EXPECT_EQ(Safetensors(dir / "x.safetensors").tensor("a").shape(), (Shape{4, 1, 1, 1}));
}

class ShardedSafetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    write_safetensors(dir_ / "1.safetensors", {{"a", Tensor::zeros({1}, DType::kF32)}});
    write_safetensors(dir_ / "2.safetensors", {{"b", Tensor::zeros({2}, DType::kF32)},
                                               {"unlisted", Tensor::zeros({2}, DType::kF32)}});
  }
  std::string refusal(std::string_view index) {
    write_text(index_, index);
    return message_of([&] {
      const Safetensors files(dir_.path());
      for (const std::string& name : files.names()) {
        files.tensor(name);
      }
    });
  }

  TempDir dir_;
  fs::path index_ = dir_ / "model.safetensors.index.json";
};

TEST_F(ShardedSafetensors, FindsTensorsByTheIndex) {
  write_text(index_, R"({"metadata":{"total_size":12,"x":[{"weight_map":1}]},
                         "weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  const Safetensors files(dir_.path());
  EXPECT_EQ(files.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(files.tensor("b").shape(), Shape{2});
  EXPECT_EQ(files.file_of("b"), dir_ / "2.safetensors");
  EXPECT_FALSE(files.contains("unlisted"));
}

TEST_F(ShardedSafetensors, RefusesBadIndices) {
  expect_mentions(refusal(R"({"weight_map":{"a":"3.safetensors"}})"), "'3.safetensors'");
  expect_mentions(refusal(R"({"weight_map":{"c":"1.safetensors"}})"), "tensor 'c' is missing");
  for (const char* name :
       {"../1.safetensors", "/tmp/1.safetensors", "sub/1.safetensors", "..", ""}) {
    const std::string message = refusal(std::string(R"({"weight_map":{"a":")") + name + "\"}}");
    expect_mentions(message, "'a'");
    expect_mentions(message, std::string("'") + name + "'");
    expect_mentions(message, "same folder");
  }
  expect_mentions(refusal(R"({"weight_map":{"a":"1.safetensors","a":"2.safetensors"}})"),
                  "'a' appears twice");
  expect_mentions(refusal(R"({"weight_map":{},"weight_map":{}})"), "weight_map appears twice");
  expect_mentions(refusal(R"({"weight_map":{"a":1}})"), "'a' is 1, expected a string");
  expect_mentions(refusal(R"({"weight_map":{"a":{}}})"), "an object, expected a string");
  expect_mentions(refusal(R"({"weight_map":["a"]})"), "a list, expected an object");
  expect_mentions(refusal(R"({"metadata":{}})"), "weight_map is missing");
  expect_mentions(refusal("[]"), "a list, expected an object");
  expect_mentions(refusal("{\"weight_map\""), "not valid JSON");
  expect_mentions(refusal(R"({"weight_map":{"a":-1e400}})"), "'a' is -1e400, expected a string");
  expect_mentions(refusal(R"({"metadata":{"total_size":1e400},"weight_map":{}})"),
                  "1e400 at byte 31, expected a number in the range of double");
  expect_mentions(refusal(""), "not valid JSON");
}

TEST_F(ShardedSafetensors, NamesTheBrokenShard) {
  write_text(dir_ / "2.safetensors", "short");
  const std::string message =
      refusal(R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  expect_mentions(message, (dir_ / "2.safetensors").string());
  expect_mentions(message, "truncated: 5 bytes");
}

TEST(SafetensorsWriter, RefusesBadNamesAndTypes) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  const Tensor tensor = Tensor::zeros({2}, DType::kF32);
  expect_mentions(message_of([&] {
                    write_safetensors(path, {{"a", tensor}, {"a", tensor}});
                  }),
                  "'a' is given twice");
  expect_mentions(message_of([&] {
                    write_safetensors(path, {{"__metadata__", tensor}});
                  }),
                  "reserved");
  expect_mentions(message_of([&] {
                    write_safetensors(path, {{"a", Tensor()}});
                  }),
                  "'a' is missing");
  expect_mentions(message_of<Unsupported>([&] {
                    write_safetensors(path, {{"a", Tensor::zeros({2}, DType::kU4)}});
                  }),
                  "no dtype for u4");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenTheDiskIsFull) {
  const TempDir dir;
  const fs::path path = dir / "x.safetensors";
  write_safetensors(path, {{"old", Tensor::zeros({1}, DType::kF32)}});
  const std::string message = message_on_full_disk(4096, [&] {
    write_safetensors(path, {{"new", Tensor::zeros({4000}, DType::kF32)}});
  });
  expect_mentions(message, path.string());
  expect_mentions(message, "File too large");
  // The old file is still there.
  EXPECT_TRUE(Safetensors(path).contains("old"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(SafetensorsWriter, NamesTheFolderThatIsMissing) {
  const TempDir dir;
  const std::string message = message_of<Error>([&] {
    write_safetensors(dir / "none/x.safetensors", {{"a", Tensor::zeros({1}, DType::kF32)}});
  });
  expect_mentions(message, "none/x.safetensors");
  expect_mentions(message, "No such file or directory");
}

}  // namespace
}  // namespace moebius::testing
