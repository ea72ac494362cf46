package cli

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/kedge-dev/kedge/internal/base/component"
	"github.com/kedge-dev/kedge/internal/base/config"
	"github.com/kedge-dev/kedge/internal/inspect/status"
	"github.com/kedge-dev/kedge/internal/testutil"
)

// run runs a command and returns its output. A server or an agent that should have been refused
// fails at its data directory, so that it changes nothing on this machine.
// run runs a command and returns what it printed. A server or an agent that should have been refused
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	t.Setenv("KEDGE_DATA_DIR", "/dev/null/none")
	app := newApp(&workload{})
	var out bytes.Buffer
	app.Writer, app.ErrWriter = &out, &out
	err := runApp(t.Context(), app, append([]string{"kedge"}, args...))
	return out.String(), err
}

func TestFlagsReachTheConfiguration(t *testing.T) {
	testutil.WithoutSettings(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte("node-name: file\ndebug: true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got *config.Config
	app := newApp(&workload{})
	app.Commands = []*cli.Command{{
		Name:  "server",
		Flags: configFlags(config.ServerRole),
		Action: func(c *cli.Context) (err error) {
			got, err = loadConfig(c)
			return err
		},
	}}
	err := app.Run([]string{"kedge", "server", "--config", file, "--node-name=flag", "--https-listen-port", "7443",
		"--tls-san", "a.example", "--tls-san", "b.example,c.example",
		"--kubelet-arg", "eviction-hard=a<1,b<2", "--selinux", "-v", "3"})
	if err != nil {
		t.Fatal(err)
	}
	want := config.Default()
	want.Node.NodeName = "flag"
	want.Log.Debug, want.Log.Verbosity = true, 3
	want.Server.HTTPSListenPort = 7443
	want.Server.TLSSAN = []string{"a.example", "b.example", "c.example"}
	want.Node.KubeletArgs = []string{"eviction-hard=a<1,b<2"}
	want.Node.SELinux = true
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestFaultsSayWhatToDo(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"unknown command":  {[]string{"serve"}, "Run `kedge --help` for the list"},
		"unknown flag":     {[]string{"server", "--data"}, "`kedge server --help`"},
		"stray argument":   {[]string{"server", "now"}, "`kedge server` takes no arguments, got \"now\""},
		"bad value":        {[]string{"server", "--https-listen-port", "many"}, "takes a whole number"},
		"unknown shell":    {[]string{"completion", "csh"}, "bash, zsh or fish"},
		"no configuration": {[]string{"server", "--config", "/does/not/exist"}, "give another path with --config"},
		"unknown output":   {[]string{"status", "-o", "xml"}, ""},
		"no snapshot":      {[]string{"snapshot", "delete"}, "Run `kedge snapshot list` for the list"},
		"none to restore":  {[]string{"snapshot", "restore"}, "Run `kedge snapshot list` for the list"},
		"no certificates":  {[]string{"certificate", "check", "--data-dir=/none"}, "set --data-dir"},
		"certificates as":  {[]string{"certificate", "check", "--data-dir=/none", "-o=xml"}, "table, json or yaml"},
		"rotate what":      {[]string{"certificate", "rotate", "x"}, "`kedge certificate rotate` takes no arguments"},
		"a near flag":      {[]string{"server", "--data-dri=/x"}, "unknown flag --data-dri: did you mean --data-dir?"},
		"no such flag":     {[]string{"server", "--disable-cloud-controllers"}, "unknown flag --disable-cloud-controllers. Run"},
		"a flag of k3s":    {[]string{"server", "--docker"}, "docker: k3s has this, and kedge does not. kedge brings containerd: remove the key."},
		"a near command":   {[]string{"snapshot", "restor"}, "unknown command \"restor\": did you mean restore?"},
		"no near command":  {[]string{"token", "mint"}, "unknown command \"mint\". Run `kedge token --help`"},
		"no end of a word": {[]string{"uninstal"}, "unknown command \"uninstal\". Run"},
		"no value":         {[]string{"server", "--data-dir"}, "flag --data-dir needs a value"},
		"for ever":         {[]string{"token", "create", "--ttl=forever"}, "flag --ttl takes a duration such as 30m, 24h or 720h, or 0 for no end, got \"forever\""},
		"ended before":     {[]string{"token", "create", "--ttl=-1h"}, "flag --ttl takes a duration"},
		"no file":          {[]string{"image", "export", "busybox"}, ""},
		"flag at the end":  {[]string{"image", "import", "f", "--data-dri", "/x"}, "unknown flag --data-dri"},
		"a long past":      {[]string{"recorder", "--since=48h"}, "flag --since takes a duration up to 24h, such as 30m or 3h, got \"48h\""},
		"a word as a port": {[]string{"console", "--port=web"}, "flag --port takes a port such as 8001, from 1 to 65535, got \"web\""},
		"nothing to try":   {[]string{"why", "--try"}, "--try needs an object: name a Service or an Ingress"},
		"a node for why":   {[]string{"why", "service/web", "--node=a"}, "--node is for --try: add --try, or leave --node out"},
		"nobody to ask":    {[]string{"why", "--to=db:5432"}, "--to needs a pod: name the one that connects, such as pod/web"},
		"no pod asks":      {[]string{"why", "service/web", "--to=db:5432"}, "--to is for a pod: name one of the pods of service/web"},
		"a URL as a host":  {[]string{"why", "pod/web", "--to=http://db"}, "flag --to takes a host and a port such as db:5432, db.shop:5432 or 10.0.0.7:443, got \"http://db\""},
		"none to keep":     {[]string{"snapshot", "prune", "--snapshot-retention=0"}, "keeps no snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := run(t, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want something with %q", err, test.want)
			}
			if ExitStatus(err) != 1 {
				t.Errorf("exit status %d, want 1", ExitStatus(err))
			}
		})
	}
}

func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		out, err := run(t, "completion", shell)
		if err != nil || !strings.Contains(out, "kedge") {
			t.Errorf("%s: %v, %q", shell, err, out)
		}
	}
	// What the scripts ask; urfave/cli looks at os.Args for it.
	old := os.Args
	t.Cleanup(func() { os.Args = old })
	os.Args = []string{"kedge", "--generate-bash-completion"}
	out, err := run(t, "--generate-bash-completion")
	if err != nil || !strings.Contains(out, "check-config") {
		t.Errorf("words: %v, %q", err, out)
	}
}

func TestPrintStatus(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	report := &status.Report{PID: 7, Version: "v1", Node: "pi", Components: []component.Status{
		{Name: "datastore", State: component.Ready, Since: now.Add(-90 * time.Second)},
		{Name: "apiserver", State: component.Failed, Since: now, Error: "apiserver: no"},
	}}
	var out bytes.Buffer
	if err := printStatus(&out, report, true, now); err != nil {
		t.Fatal(err)
	}
	want := `kedge v1 on node pi, process 7: something is wrong

wrong: component apiserver is Failed: apiserver: no
to do: read the log of kedge: journalctl -u kedge, or the file of the setting log

COMPONENT   STATE    SINCE   LAST ERROR
datastore   Ready    1m30s   
apiserver   Failed   0s      apiserver: no
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}

func TestNotifier(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenPacket("unixgram", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "1")
	newNotifier()("READY=1")
	message := make([]byte, 64)
	n, _, err := systemd.ReadFrom(message)
	if err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("got %q, %v", message[:n], err)
	}
	if os.Getenv("NOTIFY_SOCKET") != "" || os.Getenv("WATCHDOG_USEC") != "" {
		t.Error("upstream's parts would still find systemd")
	}
	newNotifier()("nobody listens")
}
