package proxy

// healthAddress is where the proxy's health is served, on loopback only.
const healthAddress = "127.0.0.1:10256"

// elsewhere are arguments of kube-proxy that have another place in kedge.
var elsewhere = map[string]string{
	"bind-address":         "give node-ip",
	"config":               "give the settings one by one",
	"feature-gates":        "they hold for the whole process; give them with kube-apiserver-arg",
	"hostname-override":    "give node-name",
	"kubeconfig":           "kedge connects it itself",
	"master":               "kedge connects it itself",
	"metrics-bind-address": "its metrics are among those of the other components",
	"oom-score-adj":        "it is a part of kedge's own process",
	"profiling":            "it is a part of kedge's own process",
	"v":                    "give kedge's own v",
}
