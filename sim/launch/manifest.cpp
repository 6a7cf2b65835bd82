#include "sim/launch/manifest.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/launch/launch_parts.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kKinds{"compose", "kubernetes", "llm-d", "dynamo"};
constexpr int kPort = 8000;
constexpr std::size_t kMaxName = 50;  // a label may have 63

/// The images that the engines' projects publish: docs.vllm.ai (Using Docker), docs.sglang.io
/// (Install SGLang), the NGC catalogue (tensorrt-llm/release).
std::string image_of(const Launch& launch) {
  std::string version = launch.version;
  while (std::count(version.begin(), version.end(), '.') < 2) version += ".0";
  if (launch.engine->stack == "vllm") return fmt::format("vllm/vllm-openai:v{}", version);
  if (launch.engine->stack == "sglang") return fmt::format("lmsysorg/sglang:v{}", version);
  return fmt::format("nvcr.io/nvidia/tensorrt-llm/release:{}", version);
}

/// Lower-case letters, digits and "-", as in Kubernetes names.
std::string label_name(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0) {
      out += static_cast<char>(std::tolower(u));
    } else if (!out.empty() && out.back() != '-') {
      out += '-';
    }
  }
  out.resize(std::min(out.size(), kMaxName));
  while (!out.empty() && out.back() == '-') out.pop_back();
  return out.empty() ? "kvsim" : out;
}

/// The command with an address that other containers can reach; files are in /config.
std::vector<std::string> container_words(const Launch& launch, const LaunchRole& role) {
  std::vector<std::string> words = role.words;
  for (const LaunchFile& file : role.files) {
    for (std::string& word : words) {
      if (word == file.name) word = "/config/" + file.name;
    }
  }
  words.insert(words.end(), {"--host", "0.0.0.0", "--port", fmt::format("{}", kPort)});
  if (launch.engine->stack == "sglang") words.front() = "python3";
  return words;
}

std::string comments(const Launch& launch, const std::vector<std::string>& more) {
  std::string out =
      fmt::format("# {} {} on {}\n", launch.engine->engine, launch.version, launch.gpu);
  for (const std::string& note : launch.notes) out += fmt::format("# {}\n", note);
  for (const std::string& note : more) out += fmt::format("# {}\n", note);
  return out;
}

ordered_json token_environment() {
  return {{"name", "HF_TOKEN"},
          {"valueFrom",
           {{"secretKeyRef", {{"name", "hf-token"}, {"key", "token"}, {"optional", true}}}}}};
}

// ---------------------------------------------------------------------------------- compose

std::string compose(const Launch& launch, const std::string& name) {
  ordered_json services, configs;
  std::vector<std::string> engines;
  std::int64_t gpu = 0;
  std::int64_t all = 0;
  for (const LaunchRole& role : launch.roles) all += role.replicas;
  for (const LaunchRole& role : launch.roles) {
    for (std::int64_t i = 0; i < role.replicas; ++i) {
      const std::string service =
          role.replicas > 1 ? fmt::format("{}-{}", role.name, i) : role.name;
      engines.push_back(service);
      ordered_json devices = ordered_json::array();
      for (std::int64_t n = 0; n < role.gpus; ++n) devices.push_back(fmt::format("{}", gpu++));
      const std::vector<std::string> words = container_words(launch, role);
      ordered_json one{{"image", image_of(launch)},
                       {"entrypoint", ordered_json::array({words.front()})},
                       {"command", std::vector<std::string>(words.begin() + 1, words.end())},
                       {"ipc", "host"},
                       {"environment", {{"HF_TOKEN", "${HF_TOKEN:-}"}}},
                       {"volumes", {"huggingface:/root/.cache/huggingface"}}};
      if (all == 1) one["ports"] = {fmt::format("{}:{}", kPort, kPort)};
      for (const LaunchFile& file : role.files) {
        const std::string config = fmt::format("{}-{}", name, role.name);
        one["configs"].push_back({{"source", config}, {"target", "/config/" + file.name}});
        configs[config] = {{"content", file.text}};
      }
      one["deploy"]["resources"]["reservations"]["devices"] = ordered_json::array(
          {{{"driver", "nvidia"}, {"device_ids", devices}, {"capabilities", {"gpu"}}}});
      services[service] = std::move(one);
    }
  }
  std::vector<std::string> more;
  if (gpu > 8) more.push_back(fmt::format("one host with {} GPUs; more hosts need a cluster", gpu));
  const bool is_split = launch.roles.size() > 1;
  if (all > 1 && !is_split && launch.router != "prefix-aware") {
    std::string upstream = "upstream engines {\n";
    if (launch.router == "least-loaded") upstream += "  least_conn;\n";
    for (const std::string& engine : engines) {
      upstream += fmt::format("  server {}:{};\n", engine, kPort);
    }
    upstream += fmt::format(
        "}}\nserver {{\n  listen {};\n  location / {{\n    proxy_pass http://engines;\n"
        "    proxy_buffering off;\n    proxy_read_timeout 1h;\n  }}\n}}\n",
        kPort);
    services["router"] = {
        {"image", "nginx:stable"},
        {"ports", {fmt::format("{}:{}", kPort, kPort)}},
        {"depends_on", engines},
        {"configs", ordered_json::array(
                        {{{"source", "router"}, {"target", "/etc/nginx/conf.d/default.conf"}}})}};
    configs["router"] = {{"content", upstream}};
  } else if (all > 1) {
    more.push_back(fmt::format("the {} router is not part of this file", launch.router));
  }
  ordered_json document{{"name", name}, {"services", services}};
  if (!configs.empty()) document["configs"] = configs;
  document["volumes"] = {{"huggingface", ordered_json::object()}};
  return comments(launch, more) + yaml_text(document);
}

// ------------------------------------------------------------------------------- kubernetes

ordered_json pod_resources(std::int64_t gpus) {
  return {{"limits", {{"nvidia.com/gpu", gpus}}}, {"requests", {{"nvidia.com/gpu", gpus}}}};
}

std::string kubernetes(const Launch& launch, const std::string& name) {
  std::string out;
  std::vector<std::string> more;
  for (const LaunchRole& role : launch.roles) {
    const std::string object =
        launch.roles.size() > 1 ? fmt::format("{}-{}", name, role.name) : name;
    const ordered_json labels{{"app", object}};
    const std::vector<std::string> words = container_words(launch, role);
    ordered_json container{
        {"name", "engine"},
        {"image", image_of(launch)},
        {"command", ordered_json::array({words.front()})},
        {"args", std::vector<std::string>(words.begin() + 1, words.end())},
        {"env", ordered_json::array({token_environment()})},
        {"ports", ordered_json::array({{{"name", "http"}, {"containerPort", kPort}}})},
        {"readinessProbe",
         {{"httpGet", {{"path", "/health"}, {"port", "http"}}}, {"periodSeconds", 10}}},
        {"resources", pod_resources(role.gpus)},
        {"volumeMounts", ordered_json::array({{{"name", "shm"}, {"mountPath", "/dev/shm"}}})}};
    ordered_json volumes =
        ordered_json::array({{{"name", "shm"}, {"emptyDir", {{"medium", "Memory"}}}}});
    if (!role.files.empty()) {
      ordered_json data;
      for (const LaunchFile& file : role.files) data[file.name] = file.text;
      out += "---\n" + yaml_text({{"apiVersion", "v1"},
                                  {"kind", "ConfigMap"},
                                  {"metadata", {{"name", object}}},
                                  {"data", data}});
      container["volumeMounts"].push_back({{"name", "config"}, {"mountPath", "/config"}});
      volumes.push_back({{"name", "config"}, {"configMap", {{"name", object}}}});
    }
    out +=
        "---\n" +
        yaml_text(
            {{"apiVersion", "apps/v1"},
             {"kind", "Deployment"},
             {"metadata", {{"name", object}, {"labels", labels}}},
             {"spec",
              {{"replicas", role.replicas},
               {"selector", {{"matchLabels", labels}}},
               {"template",
                {{"metadata", {{"labels", labels}}},
                 {"spec",
                  {{"containers", ordered_json::array({container})}, {"volumes", volumes}}}}}}}});
    out += "---\n" +
           yaml_text(
               {{"apiVersion", "v1"},
                {"kind", "Service"},
                {"metadata", {{"name", object}}},
                {"spec",
                 {{"selector", labels},
                  {"ports", ordered_json::array(
                                {{{"name", "http"}, {"port", kPort}, {"targetPort", "http"}}})}}}});
    if (role.gpus > 8) {
      more.push_back(
          fmt::format("{} needs a node with {} GPUs: several nodes need a "
                      "LeaderWorkerSet",
                      object, role.gpus));
    }
  }
  if (!launch.router.empty()) {
    more.push_back(fmt::format("a Service spreads connections by itself; simulated: a {} router",
                               launch.router));
  }
  return comments(launch, more) + out;
}

// ------------------------------------------------------------------------------------ llm-d

/// Values of the chart llm-d-modelservice (github.com/llm-d-incubation/llm-d-modelservice), which
/// adds the model, the port and the sizes of `parallelism` to the command.
std::string llm_d(const Launch& launch, const std::string& name) {
  if (launch.engine->stack != "vllm") {
    throw InputError{
        fmt::format("--manifest llm-d: its chart starts vLLM, got {}", launch.engine->engine)};
  }
  ordered_json values;
  values["multinode"] = false;
  values["modelArtifacts"] = {
      {"uri", "hf://" + launch.model},
      {"name", launch.model},
      {"size", fmt::format("{}Gi", launch.checkpoint_gib)},
      {"authSecretName", "llm-d-hf-token"},
      {"labels", {{"llm-d.ai/inference-serving", "true"}, {"llm-d.ai/model", name}}}};
  const bool is_split = launch.roles.size() > 1;
  values["routing"] = {{"servicePort", kPort}, {"proxy", {{"enabled", is_split}}}};
  if (is_split) values["routing"]["proxy"]["connector"] = "nixlv2";
  values["accelerator"] = {{"type", "nvidia"}};
  for (const LaunchRole& role : launch.roles) {
    std::vector<std::string> args;
    std::int64_t tensor = 1, data = 1;
    for (std::size_t i = 3; i < role.words.size(); ++i) {
      const std::string& word = role.words[i];
      if (word == "--tensor-parallel-size") {
        tensor = std::stoll(role.words[++i]);
      } else if (word == "--data-parallel-size") {
        data = std::stoll(role.words[++i]);
      } else {
        args.push_back(word);
      }
    }
    const std::string key = role.name == "prefill" ? "prefill" : "decode";
    // In split services the sidecar uses the service port, so the engine listens on another one.
    const int port = is_split && key == "decode" ? 8200 : kPort;
    values[key] = {
        {"create", true},
        {"parallelism", {{"tensor", tensor}, {"data", data}}},
        {"replicas", role.replicas},
        {"containers",
         ordered_json::array(
             {{{"name", "vllm"},
               {"image", image_of(launch)},
               {"modelCommand", "vllmServe"},
               {"args", args},
               {"ports", ordered_json::array(
                             {{{"containerPort", port}, {"name", "vllm"}, {"protocol", "TCP"}}})},
               {"mountModelVolume", true},
               {"resources", pod_resources(role.gpus)}}})}};
  }
  if (!is_split) values["prefill"] = {{"create", false}};
  return comments(launch, {"values of llm-d's chart llm-d-modelservice; its gateway and inference "
                           "pool are separate charts"}) +
         yaml_text(values);
}

// ----------------------------------------------------------------------------------- dynamo

/// A DynamoGraphDeployment (github.com/ai-dynamo/dynamo, examples/backends, deploy).
std::string dynamo(const Launch& launch, const std::string& name) {
  const std::string& stack = launch.engine->stack;
  if (stack == "trtllm") {
    throw InputError{
        "--manifest dynamo: its TensorRT-LLM worker takes other flags than trtllm-serve; expected "
        "vLLM or SGLang"};
  }
  const std::string image = fmt::format("nvcr.io/nvidia/ai-dynamo/{}-runtime:my-tag", stack);
  const std::string title = stack == "vllm" ? "Vllm" : "Sglang";
  ordered_json frontend{{"componentType", "frontend"}, {"replicas", 1}};
  if (launch.router == "prefix-aware") {
    frontend["envs"] = ordered_json::array({{{"name", "DYN_ROUTER_MODE"}, {"value", "kv"}}});
  }
  frontend["extraPodSpec"] = {{"mainContainer", {{"image", image}}}};
  ordered_json services{{"Frontend", frontend}};
  for (const LaunchRole& role : launch.roles) {
    // Dynamo's workers expect the model's flag, followed by the engine's flags.
    std::vector<std::string> args;
    std::size_t from = launch.engine->program.size();
    if (launch.engine->model_is_positional) {
      args = {launch.engine->model_flag, launch.model};
      ++from;
    }
    args.insert(args.end(), role.words.begin() + static_cast<std::ptrdiff_t>(from),
                role.words.end());
    ordered_json worker{{"envFromSecret", "hf-token-secret"}, {"componentType", "worker"}};
    if (role.name != "server") {
      worker["subComponentType"] = role.name;
      if (stack == "vllm") {
        args.insert(args.end(), {"--disaggregation-mode", role.name});
      }
    }
    worker["replicas"] = role.replicas;
    worker["resources"] = {{"limits", {{"gpu", fmt::format("{}", role.gpus)}}}};
    worker["extraPodSpec"] = {{"mainContainer",
                               {{"image", image},
                                {"command", {"python3", "-m", fmt::format("dynamo.{}", stack)}},
                                {"args", args}}}};
    const std::string kind = role.name == "prefill" ? "PrefillWorker" : "DecodeWorker";
    services[title + kind] = std::move(worker);
  }
  const ordered_json document{{"apiVersion", "nvidia.com/v1alpha1"},
                              {"kind", "DynamoGraphDeployment"},
                              {"metadata", {{"name", name}}},
                              {"spec", {{"services", services}}}};
  return comments(launch, {fmt::format("image: a release of Dynamo that contains {} {}",
                                       launch.engine->engine, launch.version)}) +
         yaml_text(document);
}

}  // namespace

std::span<const std::string_view> manifest_kinds() { return kKinds; }

ManifestKind read_manifest_kind(std::string_view word, std::string_view place) {
  const auto* found = std::find(kKinds.begin(), kKinds.end(), word);
  if (found == kKinds.end()) {
    throw InputError{place, fmt::format("one of {}", fmt::join(kKinds, ", ")),
                     fmt::format("\"{}\"", word)};
  }
  return static_cast<ManifestKind>(found - kKinds.begin());
}

std::string manifest_text(const Launch& launch, ManifestKind kind, const std::string& name) {
  const std::string object = label_name(name);
  switch (kind) {
    case ManifestKind::kCompose:
      return compose(launch, object);
    case ManifestKind::kKubernetes:
      return kubernetes(launch, object);
    case ManifestKind::kLlmD:
      return llm_d(launch, object);
    case ManifestKind::kDynamo:
      return dynamo(launch, object);
  }
  return {};
}

}  // namespace kvsim
