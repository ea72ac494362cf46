package cli

import (
	"os"
	"os/exec"
	"slices"
	"strings"

	kubectl "k8s.io/kubectl/pkg/cmd"
)

// plugins runs kubectl's plugins. It gives them the path of a kubectl as KUBECTL_PATH. Upstream gives
// them that of the executable (k8s.io/kubectl/pkg/cmd/plugin.go), which is kubectl only under its name.
//
//upstream:relies-on k8s.io/kubectl/pkg/cmd/plugin.go pluginEnvironment
type plugins struct{ kubectl.PluginHandler }

// Execute implements kubectl.PluginHandler. If no link in PATH makes a kubectl of this executable,
// plugins get no KUBECTL_PATH.
func (p plugins) Execute(path string, args, env []string) error {
	const variable = "KUBECTL_PATH="
	env = slices.DeleteFunc(slices.Clone(env), func(each string) bool { return strings.HasPrefix(each, variable) })
	if link, err := exec.LookPath("kubectl"); err == nil && isThis(link) {
		env = append(env, variable+link)
	}
	return p.PluginHandler.Execute(path, args, env)
}

// isThis tells whether a path leads to the executable that runs.
func isThis(path string) bool {
	there, err := os.Stat(path)
	if err != nil {
		return false
	}
	this, err := os.Stat("/proc/self/exe")
	return err == nil && os.SameFile(there, this)
}
