package measure

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestREADME finds each metric in README's table. tests/e2e/seeing does the same with
// what a server serves, the other way round too.
func TestREADME(t *testing.T) {
	text, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc, 100)
	newCollector(store{}).Describe(descriptions)
	close(descriptions)
	for description := range descriptions {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(description.String())[1]
		if !strings.Contains(string(text), "\n| `"+name+"` | ") {
			t.Errorf("README.md's table of metrics has no %s", name)
		}
	}
}
