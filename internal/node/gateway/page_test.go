package gateway

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kedge-dev/kedge/internal/node/gateway/requests"
	listening "github.com/kedge-dev/kedge/internal/node/gateway/sockets"
)

// descriptions has the text of each metric that is registered.
type descriptions struct{ texts []string }

func (d *descriptions) Register(c prometheus.Collector) error {
	found := make(chan *prometheus.Desc, 100)
	c.Describe(found)
	close(found)
	for each := range found {
		d.texts = append(d.texts, each.String())
	}
	return nil
}

func (d *descriptions) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = d.Register(c)
	}
}

func (*descriptions) Unregister(prometheus.Collector) bool { return true }

// TestPage finds each metric of a node's gateway in the table of docs/observing.md, and nothing else
// there. They have values only after the first request, so tests/e2e/seeing does not see them.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../../docs/observing.md")
	if err != nil {
		t.Fatal(err)
	}
	var registered descriptions
	requests.New(requests.Config{Registerer: &registered})
	listening.New(listening.Config{Registerer: &registered})
	_, table, _ := strings.Cut(string(text), "\nThe [gateway](gateway.md) of a node")
	table, _, _ = strings.Cut(table, "\nA server works out")
	written := map[string]bool{}
	for _, name := range regexp.MustCompile("`(kedge_gateway_[a-z_]+)`").FindAllStringSubmatch(table, -1) {
		written[name[1]] = true
	}
	for _, text := range registered.texts {
		name := regexp.MustCompile(`fqName: "([^"]+)"`).FindStringSubmatch(text)[1]
		if !written[name] {
			t.Errorf("docs/observing.md has no %s", name)
		}
		delete(written, name)
	}
	for name := range written {
		t.Errorf("docs/observing.md has %s, which no part of the gateway has", name)
	}
}
