package arguments

import (
	"strings"
	"testing"

	cliflag "k8s.io/component-base/cli/flag"
)

// TestParse gives right and wrong arguments to a program that has two.
func TestParse(t *testing.T) {
	tests := map[string]struct {
		args  []string
		count int
		names []string
		fault []string // words in the error, empty for success
	}{
		"nothing":            {count: 1, names: []string{"kedge's"}},
		"a value":            {args: []string{"count=2"}, count: 2, names: []string{"kedge's"}},
		"with dashes":        {args: []string{"--count=2"}, count: 2, names: []string{"kedge's"}},
		"with underscores":   {args: []string{"name_list=a"}, count: 1, names: []string{"a"}},
		"a list given twice": {args: []string{"name-list=a,b", "name-list=c"}, count: 1, names: []string{"a", "b", "c"}},
		"an = in the value":  {args: []string{"name-list=a=b"}, count: 1, names: []string{"a=b"}},
		"every fault at once": {
			args:  []string{"count", "count=many", "colour=red", "owned=1", "v=4"},
			names: []string{"kedge's"}, // pflag sets a number it cannot read to 0
			fault: []string{
				`kube-tester-arg: "count": is not name=value`,
				`kube-tester-arg: "count=many": invalid argument "many"`,
				`kube-tester-arg: "colour=red": kube-tester has no argument colour`,
				`kube-tester-arg: "owned=1": owned would have no effect: use mine`,
				`kube-tester-arg: "v=4": v would have no effect: set kedge's own v`,
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			count, names, owned := 1, []string{"kedge's"}, 0
			var flags cliflag.NamedFlagSets
			flags.FlagSet("numbers").IntVar(&count, "count", count, "")
			flags.FlagSet("numbers").IntVar(&owned, "owned", owned, "")
			flags.FlagSet("logs").Int("v", 0, "")
			flags.FlagSet("names").StringSliceVar(&names, "name-list", names, "")

			p := Program{"kube-tester", "kube-tester-arg", map[string]string{"owned": "use mine"}}
			err := p.Parse(flags, test.args)
			if (err != nil) != (len(test.fault) > 0) {
				t.Fatalf("Parse() error is %v", err)
			}
			for _, words := range test.fault {
				if !strings.Contains(err.Error(), words) {
					t.Errorf("Parse() error is %v, want in it %s", err, words)
				}
			}
			if count != test.count || strings.Join(names, ",") != strings.Join(test.names, ",") || owned != 0 {
				t.Errorf("parsed %d, %v, %d", count, names, owned)
			}
		})
	}
}
