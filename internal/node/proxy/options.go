package proxy

// healthAddress is the address that serves the proxy's health, on loopback only.
const healthAddress = "127.0.0.1:10256"

// elsewhere are arguments of kube-proxy that users cannot set here, with the alternative.
var elsewhere = map[string]string{
	"bind-address":         "set node-ip",
	"config":               "set each setting with its own kube-proxy-arg",
	"feature-gates":        "feature gates apply to the whole process, set them with kube-apiserver-arg",
	"hostname-override":    "set node-name",
	"kubeconfig":           "kedge connects it itself",
	"master":               "kedge connects it itself",
	"metrics-bind-address": "its metrics are served together with those of the other components",
	"oom-score-adj":        "it is a part of kedge's own process",
	"profiling":            "it is a part of kedge's own process",
	"v":                    "set v of kedge",
}
