package why

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kedge-dev/kedge/internal/base/events"
)

// sandbox says why a node cannot prepare volumes, or the network, of a pod.
var sandbox = []rule[*corev1.Pod]{
	{"volume-object-missing", unprepared(func(w *world, p *corev1.Pod) *finding {
		for _, v := range p.Spec.Volumes {
			if f := missingSource(w, p, v); f != nil {
				return f
			}
		}
		return nil
	})},
	{"volume-host-path", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, preparing...)
		if e == nil || !strings.Contains(e.Message, "hostPath type check failed") {
			return nil
		}
		_, what, _ := strings.Cut(e.Message, "hostPath type check failed")
		return found("create it on the node, or set the type of the volume to DirectoryOrCreate or FileOrCreate", "a hostPath volume does not fit node %s: %s", p.Spec.NodeName, plain(strings.TrimLeft(what, ":, ")))
	})},
	{"volume-not-attached", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, "FailedAttachVolume")
		if e == nil || w.event(p, "SuccessfulAttachVolume", events.Seen(e)) {
			return nil
		}
		return found("delete the pod that has the volume. So that it does not happen again, use a StatefulSet, or set strategy.type: Recreate in the Deployment", "a volume cannot be attached to node %s: %s", p.Spec.NodeName, plain(e.Message))
	})},
	{"volume-not-mounted", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, preparing...)
		if e == nil || e.Reason != "FailedMount" && e.Reason != "FailedMapVolume" {
			return nil
		}
		do := fmt.Sprintf("kubectl -n %s describe pod %s shows the whole message", p.Namespace, p.Name)
		if m := noMount.FindStringSubmatch(e.Message); m != nil {
			return found(do, "node %s cannot mount the volume %s: %s", p.Spec.NodeName, m[1], plain(afterLast(withoutCodes(m[2]), "Output: ")))
		}
		return found(do, "node %s cannot mount a volume: %s", p.Spec.NodeName, plain(withoutCodes(e.Message)))
	})},
	{"runtime-class", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, preparing...)
		if e == nil {
			return nil
		}
		if name := noRuntime.FindStringSubmatch(e.Message); name != nil {
			return found("install the runtime on the node, or remove runtimeClassName from the pod: see docs/runtimes.md", "node %s does not have the runtime %s, which the pod's runtimeClassName asks for", p.Spec.NodeName, name[1])
		}
		return nil
	})},
	{"network-not-ready", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, preparing...)
		if e == nil || e.Reason != "NetworkNotReady" {
			return nil
		}
		return found("kedge why node/"+p.Spec.NodeName, "the network of node %s is not ready: %s", p.Spec.NodeName, plain(afterLast(e.Message, "message:")))
	})},
	{"sandbox-failed", unprepared(func(w *world, p *corev1.Pod) *finding {
		e := w.warning(p, preparing...)
		if e == nil || e.Reason != "FailedCreatePodSandBox" {
			return nil
		}
		message := strings.TrimPrefix(withoutCodes(e.Message), "Failed to create pod sandbox: ")
		if fault := noNetwork.FindStringSubmatch(message); fault != nil {
			return found("run `kedge status` on that node, and read its log: journalctl -u kedge", "node %s cannot connect the pod to its network: %s", p.Spec.NodeName, plain(fault[1]))
		}
		return found("run `kedge status` on that node, and read its log: journalctl -u kedge", "node %s cannot create the sandbox of the pod: %s", p.Spec.NodeName, plain(message))
	})},
}

// preparing are the reasons of Events about what a node does before the containers start. The newest Event says how far the node is.
var preparing = []string{"FailedMount", "FailedMapVolume", "FailedCreatePodSandBox", "NetworkNotReady"}

var noMount = regexp.MustCompile(`(?s) for volume "([^"]+)" : (.*)$`)

var noNetwork = regexp.MustCompile(`(?s)failed to setup network for sandbox "[^"]*": (.*)$`)

var noRuntime = regexp.MustCompile(`no runtime for "([^"]+)" is configured`)

// unprepared applies a rule to pods that have a node, and whose volumes or network are not ready.
func unprepared(find func(*world, *corev1.Pod) *finding) func(*world, *corev1.Pod) *finding {
	return func(w *world, p *corev1.Pod) *finding {
		if p.Spec.NodeName == "" || prepared(p) || finished(p) {
			return nil
		}
		return find(w, p)
	}
}

// missingSource returns a finding if the ConfigMap or the Secret of a volume is not there.
func missingSource(w *world, p *corev1.Pod, v corev1.Volume) *finding {
	type source struct {
		kind, name string
		optional   *bool
		keys       []corev1.KeyToPath
	}
	var sources []source
	if s := v.ConfigMap; s != nil {
		sources = append(sources, source{"ConfigMap", s.Name, s.Optional, s.Items})
	}
	if s := v.Secret; s != nil {
		sources = append(sources, source{"Secret", s.SecretName, s.Optional, s.Items})
	}
	if v.Projected != nil {
		for _, s := range v.Projected.Sources {
			if s.ConfigMap != nil {
				sources = append(sources, source{"ConfigMap", s.ConfigMap.Name, s.ConfigMap.Optional, s.ConfigMap.Items})
			}
			if s.Secret != nil {
				sources = append(sources, source{"Secret", s.Secret.Name, s.Secret.Optional, s.Secret.Items})
			}
		}
	}
	for _, s := range sources {
		if s.optional != nil && *s.optional {
			continue
		}
		for _, item := range append(slices.Clone(s.keys), corev1.KeyToPath{}) {
			if f := missingKey(w, p.Namespace, s.kind, s.name, item.Key, "the volume "+v.Name); f != nil {
				return f
			}
		}
	}
	return nil
}

// missingKey returns a finding if a ConfigMap or a Secret is not there, or does not have a key. No key means any. user is what needs it.
func missingKey(w *world, namespace, kind, name, key, user string) *finding {
	keys, ok := keysOf(w, namespace, kind, name)
	switch {
	case ok && (key == "" || slices.Contains(keys, key)):
		return nil
	case ok:
		return found(fmt.Sprintf("correct the key, or add it: kubectl -n %s edit %s %s", namespace, strings.ToLower(kind), name),
			"%s needs the key %s of the %s %s, which has %s", user, key, kind, name, cmp.Or(strings.Join(keys, ", "), "none"))
	case w.isHidden(kind + "s"):
		return nil
	}
	return found(fmt.Sprintf("create the %s, or correct its name: kubectl -n %s get %s", kind, namespace, strings.ToLower(kind)), "%s needs the %s %s, and namespace %s has none of that name", user, kind, name, namespace)
}

// keysOf returns the keys of a ConfigMap or a Secret, and whether it is there.
func keysOf(w *world, namespace, kind, name string) (keys []string, ok bool) {
	if kind == "Secret" {
		secret, ok := get(w, w.Kubernetes.CoreV1().Secrets(namespace), "Secrets", namespace, name)
		if !ok {
			return nil, false
		}
		return slices.Sorted(maps.Keys(secret.Data)), true
	}
	m, ok := get(w, w.Kubernetes.CoreV1().ConfigMaps(namespace), "ConfigMaps", namespace, name)
	if !ok {
		return nil, false
	}
	all := maps.Clone(m.BinaryData)
	if all == nil {
		all = map[string][]byte{}
	}
	for key := range m.Data {
		all[key] = nil
	}
	return slices.Sorted(maps.Keys(all)), true
}
