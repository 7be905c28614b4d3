// flow completion bash|zsh|fish: a script generated from the verbs and options of this program.
#include "engine/cli/verbs/verbs.hpp"

namespace flow::cli {

namespace {

struct CompletedVerb {
  std::string name, what;
  std::vector<std::pair<std::string, std::string>> options;  // "--jobs" and its help
};

std::vector<CompletedVerb> verbs_of(const CLI::App& app) {
  std::vector<CompletedVerb> verbs;
  for (const CLI::App* verb : listed_verbs(app)) {
    CompletedVerb completed{verb->get_name(), verb->get_description(), {}};
    for (const CLI::Option* option : verb->get_options()) {
      std::vector<std::string> names;
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
      for (const std::string& name : option->get_snames()) names.push_back("-" + name);
      for (const std::string& name : names)
        completed.options.emplace_back(name, option->get_description());
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

std::string bash_script(const std::vector<CompletedVerb>& verbs) {
  std::string names, cases;
  for (const CompletedVerb& verb : verbs) {
    names += (names.empty() ? "" : " ") + verb.name;
    cases += "    " + verb.name + ") options=\"" + words(verb.options) + "\" ;;\n";
  }
  // The shell never expands the output of `flow __complete`: names of runs and tasks may contain
  // any characters.
  return "# bash completion of flow: eval \"$(flow completion bash)\"\n"
         "_flow() {\n"
         "  local word=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"${COMP_WORDS[1]}\" options=\"\"\n"
         "  local line kind\n"
         "  COMPREPLY=()\n"
         "  if ((COMP_CWORD == 1)) && [[ $word != -* ]]; then\n"
         "    COMPREPLY=($(compgen -W \"" +
         names +
         "\" -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  case \"$verb\" in\n" +
         cases +
         "  esac\n"
         "  if [[ $word == -* && $options ]]; then\n"
         "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
         "    return\n"
         "  fi\n"
         "  local plain=\"${word//\\\\/}\" found before=\"\"\n"
         "  [[ $word == \"=\" ]] && plain=\"\"\n"
         "  mapfile -t found < <(flow __complete \"${COMP_WORDS[@]:1:COMP_CWORD}\" 2>/dev/null)\n"
         "  kind=\"${found[0]}\"\n"
         // The word after `lr=` is completed by itself.
         "  if [[ $word == \"=\" ]]; then before=\"${COMP_WORDS[COMP_CWORD - 1]}=\"\n"
         "  elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == \"=\" ]]; then "
         "before=\"${COMP_WORDS[COMP_CWORD - 2]}=\"; fi\n"
         "  for line in \"${found[@]:1}\"; do\n"
         "    line=\"${line#\"$before\"}\"\n"
         "    [[ $line != \"$plain\"* ]] || COMPREPLY+=(\"$(printf %q \"$line\")\")\n"
         "  done\n"
         "  if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace; "
         "fi\n"
         "  if [[ $kind == files || $kind == folders ]]; then\n"
         "    compopt -o filenames\n"
         "    local action=-f\n"
         "    [[ $kind == files ]] || action=-d\n"
         "    while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen $action -- "
         "\"$plain\")\n"
         "  fi\n"
         "}\n"
         "complete -F _flow flow\n";
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
         "  local -a found\n"
         "  found=(\"${(@f)$(flow __complete \"${(@)words[2,CURRENT]}\" 2>/dev/null)}\")\n"
         "  local kind=$found[1] ending=' '\n"
         "  shift found\n"
         "  [[ $found[1] == *= ]] && ending=''\n"
         "  (($#found)) && compadd -S \"$ending\" -- $found\n"
         "  case $kind in\n"
         "    (files) _files ;;\n"
         "    (folders) _files -/ ;;\n"
         "  esac\n"
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
  return out +
         "function __flow_candidates\n"
         "  set -l found (flow __complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)\n"
         "  set -q found[2]; and printf '%s\\n' $found[2..]\n"
         "  switch $found[1]\n"
         "    case files\n"
         "      __fish_complete_path (commandline -ct)\n"
         "    case folders\n"
         "      __fish_complete_directories (commandline -ct)\n"
         "  end\n"
         "end\n"
         "complete -c flow -f -n 'not __fish_use_subcommand' -a '(__flow_candidates)'\n";
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
