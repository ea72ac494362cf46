package upgradecontrol

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kedge-dev/kedge/internal/base/upgrades"
)

// TestWindow has windows at times around their ends. The fourth of January 2026 is a Sunday.
func TestWindow(t *testing.T) {
	night := &upgrades.Window{StartTime: "22:00", EndTime: "04:00"}
	friday := &upgrades.Window{Days: []string{"fri"}, StartTime: "22:00", EndTime: "04:00"}
	day := &upgrades.Window{StartTime: "09:00", EndTime: "17:30", TimeZone: "America/New_York"}
	for name, test := range map[string]struct {
		window   *upgrades.Window
		now      string
		open     bool
		nextOpen string
	}{
		"none":                          {nil, "2026-01-04T12:00:00Z", true, ""},
		"empty":                         {&upgrades.Window{}, "2026-01-04T12:00:00Z", true, ""},
		"before it":                     {night, "2026-01-04T21:59:59Z", false, "2026-01-04T22:00:00Z"},
		"at its begin":                  {night, "2026-01-04T22:00:00Z", true, ""},
		"after midnight":                {night, "2026-01-05T03:59:59Z", true, ""},
		"at its end":                    {night, "2026-01-05T04:00:00Z", false, "2026-01-05T22:00:00Z"},
		"Saturday morning":              {friday, "2026-01-10T03:00:00Z", true, ""},
		"Friday morning":                {friday, "2026-01-09T03:00:00Z", false, "2026-01-09T22:00:00Z"},
		"Saturday night":                {friday, "2026-01-10T23:00:00Z", false, "2026-01-16T22:00:00Z"},
		"another zone, open":            {day, "2026-01-04T22:29:59Z", true, ""},
		"another zone, closed":          {day, "2026-01-04T22:30:00Z", false, "2026-01-05T14:00:00Z"},
		"the same in summer":            {day, "2026-07-04T21:30:00Z", false, "2026-07-05T13:00:00Z"},
		"the day of the zone":           {&upgrades.Window{Days: []string{"sunday"}, TimeZone: "Asia/Tokyo"}, "2026-01-03T15:00:00Z", true, ""},
		"only a start":                  {&upgrades.Window{StartTime: "22:00"}, "2026-01-04T23:59:59Z", true, ""},
		"only an end":                   {&upgrades.Window{EndTime: "04:00"}, "2026-01-04T04:00:00Z", false, "2026-01-05T00:00:00Z"},
		"start and end are the same":    {&upgrades.Window{StartTime: "12:00", EndTime: "12:00"}, "2026-01-04T11:00:00Z", true, ""},
		"two days, the second one":      {&upgrades.Window{Days: []string{"Mo", "TUESDAY"}}, "2026-01-06T00:00:00Z", true, ""},
		"two days, after them":          {&upgrades.Window{Days: []string{"mo", "tue"}}, "2026-01-07T00:00:00Z", false, "2026-01-12T00:00:00Z"},
		"the end of today, in a week":   {&upgrades.Window{Days: []string{"sun"}, EndTime: "10:00"}, "2026-01-04T10:00:00Z", false, "2026-01-11T00:00:00Z"},
		"the clocks go forward in it":   {&upgrades.Window{StartTime: "02:30", EndTime: "03:30", TimeZone: "Europe/Berlin"}, "2026-03-29T01:15:00Z", false, "2026-03-29T01:30:00Z"},
		"the hour of it comes twice":    {&upgrades.Window{StartTime: "02:30", EndTime: "03:00", TimeZone: "Europe/Berlin"}, "2026-10-25T01:45:00Z", true, ""},
		"the last day of the last week": {&upgrades.Window{Days: []string{"sat"}, StartTime: "23:00"}, "2026-01-04T00:30:00Z", false, "2026-01-10T23:00:00Z"},
	} {
		now, err := time.Parse(time.RFC3339, test.now)
		if err != nil {
			t.Fatal(err)
		}
		open, next, err := opens(test.window, now)
		got := ""
		if !next.IsZero() {
			got = next.UTC().Format(time.RFC3339)
		}
		if err != nil || open != test.open || got != test.nextOpen {
			t.Errorf("%s: got %t, %q, %v; want %t, %q", name, open, got, err, test.open, test.nextOpen)
		}
	}
}

func TestWindowFaults(t *testing.T) {
	for want, window := range map[string]*upgrades.Window{
		"spec.window.timeZone":                 {TimeZone: "Mars/Olympus"},
		`"25:00" is not a time: write it`:      {StartTime: "25:00"},
		"spec.window.endTime":                  {EndTime: "noon"},
		`"m" is not a day: use some of sunday`: {Days: []string{"m"}},
		`"mondays" is not a day`:               {Days: []string{"mondays"}},
	} {
		if _, _, err := opens(window, time.Now()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestZonesOfHost has a host without zones, such as a small image. Its process is this test again,
// with mounts of its own.
func TestZonesOfHost(t *testing.T) {
	const child = "UPGRADE_TEST_ZONES"
	if os.Getenv(child) == "" {
		command := exec.Command("/proc/self/exe", "-test.run=^TestZonesOfHost$", "-test.count=1")
		command.Env = []string{child + "=1"}
		command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if os.Geteuid() != 0 {
			command.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			}
		}
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	for _, folder := range []string{"/usr/share/zoneinfo", "/usr/share/lib/zoneinfo", "/usr/lib/locale/TZ", "/etc/zoneinfo"} {
		if _, err := os.Stat(folder); err != nil {
			continue
		}
		if err := unix.Mount("none", folder, "tmpfs", 0, ""); err != nil {
			t.Fatal(fmt.Errorf("mount over %s: %w", folder, err))
		}
	}
	if open, _, err := opens(&upgrades.Window{TimeZone: "Europe/Berlin"}, time.Now()); !open || err != nil {
		t.Errorf("got %t, %v", open, err)
	}
}
