package keep

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kedge-dev/kedge/internal/testutil/guide"
	"github.com/kedge-dev/kedge/tests/harness"
	"github.com/kedge-dev/kedge/tests/harness/cluster"
	"github.com/kedge-dev/kedge/tests/harness/image"
)

// TestDrill does what docs/drill.md says, from top to bottom.
func TestDrill(t *testing.T) {
	t.Parallel()
	harness.Require(t)
	repository, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	pages, err := guide.Pages(repository)
	if err != nil {
		t.Fatal(err)
	}
	page := pages[slices.IndexFunc(pages, func(p guide.Page) bool { return p.Name == "docs/drill.md" })]
	blocks, err := page.Blocks()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := image.BusyboxAs(repository, "docker.io/library/busybox:1.37")
	if err != nil {
		t.Fatal(err)
	}
	host := cluster.NewHost(t, harness.NewNetwork(t), "server-1")
	host.Preload(archive)
	server := host.StartServer(t)
	server.WaitReady()
	// The host has no service manager, and shares /srv with the machine.
	services := map[string]func(){
		"sudo systemctl stop kedge": server.Terminate,
		"sudo systemctl start kedge": func() {
			server.Start()
			server.WaitReady()
		},
	}
	services["sudo systemctl restart kedge"] = func() {
		server.Terminate()
		services["sudo systemctl start kedge"]()
	}
	place := strings.NewReplacer("/srv/drill", "/opt/drill")
	run := func(script string) string {
		t.Helper()
		script = "set -eo pipefail; sudo() { \"$@\"; }; kedge() { " + os.Getenv("KEDGE_BINARY") + " \"$@\"; }\n" + place.Replace(script)
		output, err := host.Command(t.Context(), "bash", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, script, output)
		}
		t.Logf("%s%s", script, output)
		return string(output)
	}
	all := ""
	for _, block := range blocks {
		script := ""
		for line := range strings.Lines(block.Text) {
			service, ok := services[strings.TrimSpace(line)]
			if !ok {
				script += line
				continue
			}
			all += run(script)
			script = ""
			service()
			if strings.Contains(line, " start ") {
				cluster.Preload(t, host) // the images went with the data
				host.Preload(archive)
			}
		}
		all += run(script)
	}
	for _, want := range []string{
		"- the volume of claim default/notes, as of ", "Everything was read and verified", "This machine is now server server-1", "water the plants\n", "created by kubectl-client-side-apply", "changed by kedge",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q", want)
		}
	}
}
