package host

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
	"time"
)

func byName(t *testing.T, checks []Check, name string) Check {
	t.Helper()
	for _, c := range checks {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("no check %s in %+v", name, checks)
	return Check{}
}

func TestCheckFacts(t *testing.T) {
	facts := good()
	facts.MemoryBytes, facts.Nftables, facts.AppArmor = 4<<30, true, true
	if checks := checkFacts(facts); Worst(checks) != OK {
		t.Errorf("a good host gets %+v", checks)
	}
	facts.MemoryBytes = 256 << 20
	if c := byName(t, checkFacts(facts), "memory"); c.Result != OK || !strings.Contains(c.Detail, "enough for a server") {
		t.Errorf("256 MiB: %+v", c)
	}
	facts.Controllers, facts.MemoryBytes, facts.Nftables = []string{"cpu", "pids"}, 128<<20, false
	checks := checkFacts(facts)
	for name, want := range map[string]Result{"controllers": Fail, "memory": Fail, "nftables": Warn, "systemd": OK} {
		if c := byName(t, checks, name); c.Result != want || c.Result != OK && c.Cost == "" {
			t.Errorf("%+v, want %s and its cost", c, want)
		}
	}
	if Worst(checks) != Fail {
		t.Errorf("worst is %s", Worst(checks))
	}
}

func TestCheckKernel(t *testing.T) {
	var config bytes.Buffer
	w := gzip.NewWriter(&config)
	_, _ = w.Write([]byte("CONFIG_NAMESPACES=y\nCONFIG_VXLAN=m\n# CONFIG_VETH is not set\n"))
	_ = w.Close()
	checks := checkKernel(tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "proc/config.gz": config.String()}))
	for name, want := range map[string]Result{"NAMESPACES": OK, "VXLAN": OK, "VETH": Fail, "WIREGUARD": Warn} {
		if c := byName(t, checks, name); c.Result != want || c.Result != OK && c.Cost == "" {
			t.Errorf("%+v, want %s and its cost", c, want)
		}
	}
	checks = checkKernel(tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n"}))
	if len(checks) != 1 || checks[0].Result != Warn || !strings.Contains(checks[0].Detail, "6.1.0") {
		t.Errorf("without a configuration of the kernel: got %+v, want one warning", checks)
	}
	checks = checkKernel(tree(t, map[string]string{"proc/sys/kernel/osrelease": "6.1.0\n", "boot/config-6.1.0": "CONFIG_VETH=y\n"}))
	if c := byName(t, checks, "VETH"); c.Result != OK {
		t.Errorf("with a configuration in /boot: got %+v, want OK", c)
	}
}

func TestCheckStorage(t *testing.T) {
	checks := checkStorage(tree(t, map[string]string{"dev/loop-control": "", "sbin/mkfs.ext4": ""}))
	if Worst(checks) != OK {
		t.Errorf("a good host gets %+v", checks)
	}
	for _, c := range checkStorage(tree(t, nil)) {
		if c.Result != Warn || !strings.Contains(c.Cost, "local-unlimited") {
			t.Errorf("%+v, want a warning and what to do", c)
		}
	}
}

func TestCheckDiskLooksAtTheParent(t *testing.T) {
	if c := checkDisk(t.TempDir() + "/not/there/yet"); !strings.Contains(c.Detail, "free on") && c.Cost == "" {
		t.Errorf("got %+v", c)
	}
}

func TestCheckClock(t *testing.T) {
	built := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		now          time.Time
		synchronised bool
		want         Result
	}{
		{built.Add(time.Hour), true, OK},
		{built.Add(time.Hour), false, Warn},
		{time.Unix(0, 0), true, Warn},
	} {
		if c := checkClock(test.now, built, test.synchronised); c.Result != test.want {
			t.Errorf("got %+v, want %s", c, test.want)
		}
	}
}

func TestCheckHostRuns(t *testing.T) {
	checks := CheckHost(t.Context(), CheckConfig{DataDir: t.TempDir()})
	for _, c := range checks {
		if c.Result != OK && c.Detail == "" && c.Cost == "" {
			t.Errorf("%+v says nothing", c)
		}
		t.Logf("%-8s %-30s %-5s %s %s", c.Group, c.Name, c.Result, c.Detail, c.Cost)
	}
}
