// flow completion bash|zsh|fish: a script generated from the verbs and options of this program.
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

struct CompletedVerb {
  std::string name, what;
  std::vector<std::pair<std::string, std::string>> options;  // "--jobs" and its help
  std::string valued;                                        // options that take a value
};

std::vector<CompletedVerb> verbs_of(const CLI::App& app) {
  std::vector<CompletedVerb> verbs;
  for (const CLI::App* verb : listed_verbs(app)) {
    CompletedVerb completed{verb->get_name(), verb->get_description(), {}, ""};
    for (const CLI::Option* option : verb->get_options()) {
      std::vector<std::string> names;
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      for (const std::string& name : names) {
        completed.options.emplace_back(name, option->get_description());
        if (option->get_items_expected_max() > 0) completed.valued += " " + name;
      }
    }
    verbs.push_back(std::move(completed));
  }
  return verbs;
}

std::string words(const std::vector<std::pair<std::string, std::string>>& options) {
  std::string out;
  for (const auto& [name, what] : options) out += (out.empty() ? "" : " ") + name;
  return out;
}

std::string single_quoted(const std::string& text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Verbs whose first argument is a run, and verbs whose second argument is a task of it.
constexpr const char* kRunVerbs =
    "resume|retry|cancel|signal|show|get|logs|metrics|compare|why|diff|graph";
constexpr const char* kTaskVerbs = "retry|logs|metrics|why";

constexpr const char* kFormats = "dot svg mermaid json";  // for `flow graph`

/// Shell commands that print the candidates for an argument; RUN stands for the run on the command
/// line.
constexpr const char* kRuns = "echo last; flow ls 2>/dev/null | cut -d' ' -f1";
constexpr const char* kTasks = "flow show \"RUN\" 2>/dev/null | sed -n '1,/^$/d;/^$/q;s/ .*//p'";
constexpr const char* kSignals =
    "flow show \"RUN\" 2>/dev/null | sed -n 's/.*the signal `\\([^`]*\\)`.*/\\1/p'";

/// "resume:0|retry:0": a pattern of verbs and the number of arguments before the current one.
std::string at_place(const std::string& verbs, const std::string& place) {
  std::string out;
  for (char c : verbs) out += c == '|' ? ":" + place + "|" : std::string(1, c);
  return out + ":" + place;
}

/// `command` for the run in the shell's variable or expression `run`.
std::string of_run(std::string command, const std::string& run) {
  size_t at = command.find("RUN");
  return command.replace(at, 3, run);
}

std::string bash_script(const std::vector<CompletedVerb>& verbs) {
  std::string names, cases;
  for (const CompletedVerb& verb : verbs) {
    names += (names.empty() ? "" : " ") + verb.name;
    cases += "    " + verb.name + ") options=\"" + words(verb.options) + "\" valued=\"" +
             verb.valued + " \" ;;\n";
  }
  return "# bash completion of flow: eval \"$(flow completion bash)\"\n"
         "_flow() {\n"
         "  local word=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"${COMP_WORDS[1]}\" options=\"\" "
         "valued=\"\"\n"
         "  local before=\"${COMP_WORDS[COMP_CWORD - 1]}\" place=0 run=\"\" i\n"
         "  COMPREPLY=()\n"
         "  if ((COMP_CWORD == 1)); then\n"
         "    COMPREPLY=($(compgen -W \"" +
         names +
         "\" -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  case \"$verb\" in\n" +
         cases +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  if [[ $valued == *\" $before \"* ]]; then\n"
         "    [[ $before == --format ]] && COMPREPLY=($(compgen -W \"" +
         std::string(kFormats) +
         "\" -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
         "    if [[ ${COMP_WORDS[i]} == -* ]]; then\n"
         "      [[ $valued != *\" ${COMP_WORDS[i]} \"* ]] || ((++i))\n"
         "      continue\n"
         "    fi\n"
         "    ((++place > 1)) || run=${COMP_WORDS[i]}\n"
         "  done\n"
         "  case \"$verb:$place\" in\n"
         "    " +
         at_place(kRunVerbs, "0") + "|diff:1|compare:*) COMPREPLY=($(compgen -W \"$(" + kRuns +
         ")\" -- \"$word\")) ;;\n"
         "    " +
         at_place(kTaskVerbs, "1") + ") COMPREPLY=($(compgen -W \"$(" + of_run(kTasks, "$run") +
         ")\" -- \"$word\")) ;;\n"
         "    signal:1) COMPREPLY=($(compgen -W \"$(" +
         of_run(kSignals, "$run") +
         ")\" -- \"$word\")) ;;\n"
         "    completion:0) COMPREPLY=($(compgen -W \"bash zsh fish\" -- \"$word\")) ;;\n"
         "  esac\n"
         "}\n"
         "complete -o default -F _flow flow\n";
}

std::string zsh_script(const std::vector<CompletedVerb>& verbs) {
  std::string names, cases;
  for (const CompletedVerb& verb : verbs) {
    names += "    " + single_quoted(verb.name + ":" + verb.what) + "\n";
    cases += "    " + verb.name + ") options=(" + words(verb.options) + ") ;;\n";
  }
  return "#compdef flow\n"
         "# zsh completion of flow: eval \"$(flow completion zsh)\"\n"
         "_flow() {\n"
         "  local -a verbs options\n"
         "  verbs=(\n" +
         names +
         "  )\n"
         "  if ((CURRENT == 2)); then\n"
         "    _describe verb verbs\n"
         "    return\n"
         "  fi\n"
         "  case \"$words[2]\" in\n" +
         cases +
         "  esac\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    compadd -- $options\n"
         "    return\n"
         "  fi\n"
         "  case \"$words[2]:$CURRENT\" in\n"
         "    (" +
         std::string(kRunVerbs) + "):3|diff:4|compare:*) compadd -- ${(f)\"$(" + kRuns +
         ")\"} && return ;;\n"
         "    (" +
         kTaskVerbs + "):4) compadd -- ${(f)\"$(" + of_run(kTasks, "$words[3]") +
         ")\"} && return ;;\n"
         "    signal:4) compadd -- ${(f)\"$(" +
         of_run(kSignals, "$words[3]") +
         ")\"} && return ;;\n"
         "    completion:3) compadd -- bash zsh fish && return ;;\n"
         "  esac\n"
         "  _files\n"
         "}\n"
         // As a file in fpath it is run in place of the function at the first call.
         "if [[ $funcstack[1] == _flow ]]; then _flow \"$@\"; else compdef _flow flow; fi\n";
}

std::string fish_script(const std::vector<CompletedVerb>& verbs) {
  std::string out = "# fish completion of flow: flow completion fish | source\n";
  for (const CompletedVerb& verb : verbs) {
    out += "complete -c flow -f -n __fish_use_subcommand -a " + verb.name + " -d " +
           single_quoted(verb.what) + "\n";
    for (const auto& [name, what] : verb.options) {
      bool is_long = name.starts_with("--");
      out += "complete -c flow -n '__fish_seen_subcommand_from " + verb.name + "' " +
             (is_long ? "-l " : "-s ") + name.substr(is_long ? 2 : 1) + " -d " +
             single_quoted(what) + "\n";
    }
  }
  std::string runs = kRunVerbs;
  for (char& c : runs) c = c == '|' ? ' ' : c;
  return out + "complete -c flow -n '__fish_seen_subcommand_from " + runs +
         "; and test (count (commandline -opc)) -eq 2' -a \"last (flow ls 2>/dev/null | string "
         "split -f1 ' ')\"\n"
         "complete -c flow -f -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n";
}

}  // namespace

void add_completion(CLI::App& app, VerbContext& context) {
  auto shell = std::make_shared<std::string>();
  CLI::App* verb = add_verb(app, context, "completion", "print a completion script for a shell");
  verb->add_option("shell", *shell, "bash, zsh or fish")
      ->type_name("SHELL")
      ->required()
      ->check(one_of("`flow completion`", {"bash", "zsh", "fish"}));
  verb->callback([&context, shell] {
    context.action = [&context, shell] {
      std::vector<CompletedVerb> verbs = verbs_of(*context.app);
      std::string text = *shell == "bash"  ? bash_script(verbs)
                         : *shell == "zsh" ? zsh_script(verbs)
                                           : fish_script(verbs);
      print_text(text);
      return int{kDone};
    };
  });
}

}  // namespace flow::cli
