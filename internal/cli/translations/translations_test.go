package translations

import "testing"

func TestIsKubectl(t *testing.T) {
	for _, test := range []struct {
		args []string
		want bool
	}{
		{[]string{"kedge", "kubectl", "get", "pods"}, true},
		{[]string{"/usr/local/bin/kubectl"}, true},
		{[]string{"kedge"}, false},
		{[]string{"/usr/local/bin/kedge", "server", "kubectl"}, false},
		{nil, false},
	} {
		if got := isKubectl(test.args); got != test.want {
			t.Errorf("%q: %t", test.args, got)
		}
	}
}
