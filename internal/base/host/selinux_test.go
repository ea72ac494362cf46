package host

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestConfinement(t *testing.T) {
	const own, process, file = "system_u:system_r:initrc_t:s0", "system_u:system_r:container_t:s0:c1,c2", "system_u:object_r:container_file_t:s0:c1,c2"
	for _, test := range []struct {
		name    string
		change  func(*confinement)
		unknown string
		denied  []string
		want    string
	}{
		{name: "labels that kedge may use"},
		{name: "permissive mode", change: func(c *confinement) { c.enforced = false }, denied: []string{"process transition"}},
		{name: "unknown domain in permissive mode", change: func(c *confinement) { c.enforced = false }, unknown: process, want: "does not have the label " + process},
		{name: "no file with labels", change: func(c *confinement) { c.process, c.file = "", "" }, want: "names no labels for containers"},
		{name: "unknown domain", unknown: process, want: "does not have the label " + process},
		{name: "unknown type of files", unknown: file, want: "does not have the label " + file},
		{name: "no transition", denied: []string{"process transition"}, want: "does not let kedge (" + own + ") start containers (" + process + ")"},
		{name: "no transition without new privileges", denied: []string{"process2 nnp_transition"}, want: "docs/selinux.md"},
		{name: "no answer", change: func(c *confinement) {
			c.allowed = func(string, string, string, string) (bool, error) { return false, errors.New("permission denied") }
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := confinement{
				enforced: true, own: own, process: process, file: file,
				known: func(label string) error {
					if label == test.unknown {
						return errors.New("invalid argument")
					}
					return nil
				},
				allowed: func(_, _, class, permission string) (bool, error) {
					return !slices.Contains(test.denied, class+" "+permission), nil
				},
			}
			if test.change != nil {
				test.change(&c)
			}
			err := c.check()
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want nil", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
