package cli

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"k8s.io/kubectl/pkg/util/i18n"
)

// TestTranslations asks programs of different names for a text of kubectl's: it is
// German as kubectl, and whoever is not kubectl has not read translations at all.
func TestTranslations(t *testing.T) {
	const text, german = "Print the list of flags inherited by all commands", "Schreibt die Liste von Optionen, die alle Befehle erben"
	const child = "KEDGE_TEST_TRANSLATES"
	if os.Getenv(child) != "" {
		fmt.Print(i18n.T(text))
		os.Exit(0)
	}
	for name, want := range map[string]string{"kubectl": german, "/usr/bin/kubectl": german, "kedge": text} {
		command := exec.Command(os.Args[0], "-test.run=^TestTranslations$")
		command.Args[0] = name
		command.Env = append(os.Environ(), child+"=yes", "LC_ALL=de_DE.UTF-8")
		out, err := command.CombinedOutput()
		if err != nil || string(out) != want {
			t.Errorf("called as %s: got %q, %v, want %q", name, out, err, want)
		}
	}
}
