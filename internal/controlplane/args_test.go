package controlplane

import (
	"strings"
	"testing"

	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
)

// TestWorkers has few of them, and a user's word count.
func TestWorkers(t *testing.T) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	limitWorkers(o, 4)
	if many, few := o.ResourceClaimController.ConcurrentSyncs, o.DaemonSetController.ConcurrentDaemonSetSyncs; many != 4 || few != 2 {
		t.Errorf("of 50 and 2 there are %d and %d", many, few)
	}
	o, err = controllersOptions(&ControllersConfig{Args: []string{"concurrent-gc-syncs=33"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := o.GarbageCollectorController.ConcurrentGCSyncs; got != 33 {
		t.Errorf("a user's 33 are %d", got)
	}
}

func TestParse(t *testing.T) {
	tests := map[string]struct {
		args  []string
		count int
		names []string
		fault []string // words of the error, none for success
	}{
		"nothing":            {count: 1, names: []string{"kedge's"}},
		"a value":            {args: []string{"count=2"}, count: 2, names: []string{"kedge's"}},
		"with dashes":        {args: []string{"--count=2"}, count: 2, names: []string{"kedge's"}},
		"with underscores":   {args: []string{"name_list=a"}, count: 1, names: []string{"a"}},
		"a list given twice": {args: []string{"name-list=a,b", "name-list=c"}, count: 1, names: []string{"a", "b", "c"}},
		"an = in the value":  {args: []string{"name-list=a=b"}, count: 1, names: []string{"a=b"}},
		"every fault at once": {
			args:  []string{"count", "count=many", "colour=red", "owned=1"},
			names: []string{"kedge's"}, // pflag sets a number it cannot read to 0
			fault: []string{
				`kube-tester-arg: "count": is not name=value`,
				`kube-tester-arg: "count=many": invalid argument "many"`,
				`kube-tester-arg: "colour=red": kube-tester has no argument colour`,
				`kube-tester-arg: "owned=1": owned would have no effect: use mine`,
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			count, names, owned := 1, []string{"kedge's"}, 0
			var flags cliflag.NamedFlagSets
			flags.FlagSet("numbers").IntVar(&count, "count", count, "")
			flags.FlagSet("numbers").IntVar(&owned, "owned", owned, "")
			flags.FlagSet("names").StringSliceVar(&names, "name-list", names, "")

			p := program{"kube-tester", "kube-tester-arg", map[string]string{"owned": "use mine"}}
			err := p.parse(flags, test.args)
			if (err != nil) != (len(test.fault) > 0) {
				t.Fatalf("parse() error is %v", err)
			}
			for _, words := range test.fault {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("parse() error is %v, want in it %s", err, words)
				}
			}
			if count != test.count || strings.Join(names, ",") != strings.Join(test.names, ",") || owned != 0 {
				t.Errorf("parsed %d, %v, %d", count, names, owned)
			}
		})
	}
}
