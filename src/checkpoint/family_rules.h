// SPDX-FileCopyrightText: 2026 the Moebius authors
// SPDX-License-Identifier: Apache-2.0
//
// Functions that rows of the table of families name.  Each reads fields of its own from
// config.json.
#pragma once

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace moebius::checkpoint {

// These list the layers that have experts.
void all_layers(const ConfigFields& fields, ModelInfo& info);
void layers_after_dense(const ConfigFields& fields, ModelInfo& info);
void qwen_layers(const ConfigFields& fields, ModelInfo& info);
void llama4_layers(const ConfigFields& fields, ModelInfo& info);
void ernie_layers(const ConfigFields& fields, ModelInfo& info);
void jamba_layers(const ConfigFields& fields, ModelInfo& info);
void nemotron_layers(const ConfigFields& fields, ModelInfo& info);
void gemma_layers(const ConfigFields& fields, ModelInfo& info);

// Rules that single families have.
void deepseek_rules(const ConfigFields& fields, ModelConfig& config);
void mistral4_rules(const ConfigFields& fields, ModelConfig& config);
void deepseek_v4_rules(const ConfigFields& fields, ModelConfig& config);
void gpt_oss_rules(const ConfigFields& fields, ModelConfig& config);
void minimax_m3_rules(const ConfigFields& fields, ModelConfig& config);
void llama4_rules(const ConfigFields& fields, ModelConfig& config);
void ernie_rules(const ConfigFields& fields, ModelConfig& config);
void hunyuan_rules(const ConfigFields& fields, ModelConfig& config);
void lfm2_rules(const ConfigFields& fields, ModelConfig& config);
void cohere2_rules(const ConfigFields& fields, ModelConfig& config);
void laguna_rules(const ConfigFields& fields, ModelConfig& config);
void nemotron_rules(const ConfigFields& fields, ModelConfig& config);
void gemma_rules(const ConfigFields& fields, ModelConfig& config);
void phimoe_rules(const ConfigFields& fields, ModelConfig& config);
void glm5_next_rules(const ConfigFields& fields, ModelConfig& config);
void kimi_linear_rules(const ConfigFields& fields, ModelConfig& config);

}  // namespace moebius::checkpoint
