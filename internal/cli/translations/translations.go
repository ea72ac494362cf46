// Package translations has the texts of kubectl's commands translated where kubectl
// runs, and nowhere else: all programs that link them would translate them at their
// start, which takes 30 ms and 4 MB. The cli package imports it for this effect, which is
// on the whole process and comes before main.
package translations

import (
	"os"
	"path/filepath"

	"k8s.io/kubectl/pkg/util/i18n"
)

// This is the only init function in kedge, and cannot move to main: the variables of
// kubectl's packages ask for texts when Go initializes them, which is before main. Go
// initializes this package before those because its import path is smaller. A test of
// package cli fails if it does not.
func init() {
	// It fails when it is too late, and then nothing is lost.
	_ = i18n.SetLoadTranslationsFunc(load)
}

func load() error {
	if !isKubectl(os.Args) {
		return nil
	}
	return i18n.LoadTranslations("kubectl", nil)
}

// isKubectl is for package cli's two ways to call kubectl.
func isKubectl(args []string) bool {
	return len(args) > 0 && filepath.Base(args[0]) == "kubectl" || len(args) > 1 && args[1] == "kubectl"
}
