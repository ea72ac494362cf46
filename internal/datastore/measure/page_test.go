package measure

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestPage finds each metric in the table of docs/observing.md. tests/e2e/seeing compares
// the table in both directions with the metrics that a server serves.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc, 100)
	newCollector(store{}).Describe(descriptions)
	close(descriptions)
	for description := range descriptions {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(description.String())[1]
		if !strings.Contains(string(text), "\n| `"+name+"` | ") {
			t.Errorf("docs/observing.md has no %s", name)
		}
	}
}
