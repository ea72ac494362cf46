package testutil

import (
	"os"
	"strings"
	"testing"
)

// WithoutSettings removes variables that kedge would take for settings from the
// environment of a test. Whoever runs the tests may have some, such as KEDGE_BINARY.
func WithoutSettings(t testing.TB) {
	t.Helper()
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "KEDGE_") || strings.HasPrefix(name, "K3S_") {
			t.Setenv(name, "") // restores it after the test
			os.Unsetenv(name)
		}
	}
}
