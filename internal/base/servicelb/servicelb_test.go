package servicelb

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestChoice(t *testing.T) {
	type set = map[string]string
	for _, test := range []struct {
		name    string
		nodes   []set
		service set
		want    []int
	}{
		{"without labels", []set{{}, nil}, nil, []int{0, 1}},
		{"one is excluded", []set{{corev1.LabelNodeExcludeBalancers: ""}, {}}, nil, []int{1}},
		{"one is enabled", []set{{EnableLabel: "true"}, {}}, nil, []int{0}},
		{"one is disabled", []set{{EnableLabel: "false"}, {}}, nil, nil},
		{"an enabled one is excluded", []set{{EnableLabel: "true", corev1.LabelNodeExcludeBalancers: "false"}, {}}, nil, nil},
		{"a pool without enabled nodes", []set{{PoolLabel: "a"}, {}}, set{PoolLabel: "a"}, []int{0, 1}},
		{"a pool", []set{{EnableLabel: "true", PoolLabel: "a"}, {EnableLabel: "true"}, {PoolLabel: "a"}}, set{PoolLabel: "a"}, []int{0}},
		{"several pools of a node", []set{
			{EnableLabel: "true", PoolLabel: "a", PoolsPrefix + "b": "true"}, {EnableLabel: "true", PoolsPrefix + "b": "false"}, {EnableLabel: "true", PoolsPrefix + "c": "true"},
		}, set{PoolLabel: "b"}, []int{0}},
		{"several restricted pools of a node", []set{
			{RestrictedEnableLabel: "true", PoolsPrefix + "b": "true"}, {RestrictedEnableLabel: "true", RestrictedPoolsPrefix + "b": "true"},
		}, set{PoolLabel: "b"}, []int{1}},
		{"restricted", []set{{RestrictedEnableLabel: "true"}, {}}, nil, []int{0}},
		{"a node enables itself", []set{{RestrictedEnableLabel: "true"}, {EnableLabel: "true"}}, nil, []int{0}},
		{"a node enables itself, and comes first", []set{{EnableLabel: "true"}, {RestrictedEnableLabel: "true"}}, nil, []int{1}},
		{"a node puts itself into a pool", []set{
			{RestrictedEnableLabel: "true", RestrictedPoolLabel: "a"}, {RestrictedEnableLabel: "true", PoolLabel: "a"},
		}, set{PoolLabel: "a"}, []int{0}},
	} {
		choice := ChoiceOf(slices.Values(test.nodes))
		var got []int
		for i, node := range test.nodes {
			if choice.Allows(node, test.service) {
				got = append(got, i)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: nodes %v serve, want %v", test.name, got, test.want)
		}
	}
}

func TestIsAbout(t *testing.T) {
	port := &corev1.ServicePort{Port: 80}
	for message, want := range map[string]bool{
		"": false,
		"There are no available nodes for LoadBalancer: no node is Ready":                                  true,
		"port 80/tcp is taken by nginx (process 7) on node a. Free the port there":                         true,
		"port 443/tcp is taken by sshd on node a; port 80/tcp is taken by nginx (process 7) on nodes a, b": true,
		"port 8080/tcp is taken by nginx (process 7) on node a":                                            false,
		"port 80/udp belongs to the older Service default/dns on node a":                                   false,
	} {
		if got := IsAbout(message, port); got != want {
			t.Errorf("%q is about port 80/tcp: %t", message, got)
		}
	}
}
