package why

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/kedge-dev/kedge/internal/base/localstorage"
)

// claimWay is what happens to a claim.
var claimWay = []stage[*corev1.PersistentVolumeClaim]{
	{name: "deletion", rules: []rule[*corev1.PersistentVolumeClaim]{
		{"claim-in-use", func(w *world, c *corev1.PersistentVolumeClaim) *finding {
			if c.DeletionTimestamp == nil {
				return nil
			}
			users := usersOf(w, c)
			if len(users) == 0 {
				return nil
			}
			return found(fmt.Sprintf("delete the pod, or the object that makes it (kubectl -n %[1]s describe pod %[2]s, Controlled By): kubectl -n %[1]s delete pod %[2]s", c.Namespace, users[0].Name), "the claim was deleted %s ago, and stays as long as the pod %s uses it", since(w, c.DeletionTimestamp.Time), users[0].Name)
		}},
		{"claim-finalizers", func(w *world, c *corev1.PersistentVolumeClaim) *finding { return stuck(w, "pvc", c) }},
	}, passed: func(_ *world, c *corev1.PersistentVolumeClaim) string {
		if c.DeletionTimestamp != nil {
			return ""
		}
		return "nobody has deleted it"
	}, waiting: "the claim is being deleted"},
	{name: "binding", rules: binding, passed: func(_ *world, c *corev1.PersistentVolumeClaim) string {
		if c.Status.Phase != corev1.ClaimBound {
			return ""
		}
		return "it has the volume " + c.Spec.VolumeName
	}, waiting: "the volume is being made"},
	{name: "node", rules: []rule[*corev1.PersistentVolumeClaim]{
		{"volume-node-gone", func(w *world, c *corev1.PersistentVolumeClaim) *finding {
			name := nodeOfVolume(w, c)
			if name == "" {
				return nil
			}
			if _, ok := node(w, name); ok || w.isHidden("nodes") {
				return nil
			}
			return found(fmt.Sprintf("start kedge on that node again. To give up the data: kubectl -n %s delete pvc %s", c.Namespace, c.Name), "the cluster has no node %s, which has the data of the claim", name)
		}},
		{"volume-node-silent", func(w *world, c *corev1.PersistentVolumeClaim) *finding {
			name := nodeOfVolume(w, c)
			silent := silentNode(w, name)
			if silent == nil {
				return nil
			}
			return found("start that machine, or run `kedge status` there", "node %s, which has the data of the claim, has not answered for %s", name, since(w, silent.LastTransitionTime.Time))
		}},
	}, passed: func(w *world, c *corev1.PersistentVolumeClaim) string {
		if name := nodeOfVolume(w, c); name != "" {
			return "the data are on node " + name
		}
		if w.isHidden("volumes") {
			return "it is not known which node has the data, because you may not read volumes"
		}
		return "the data are not bound to a node"
	}},
	{name: "size", rules: []rule[*corev1.PersistentVolumeClaim]{
		{"resize-failed", func(w *world, c *corev1.PersistentVolumeClaim) *finding {
			wanted, has := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.Capacity[corev1.ResourceStorage]
			message := resizeFault(w, c)
			if message == "" || wanted.Cmp(has) <= 0 {
				return nil
			}
			return found(fmt.Sprintf("make room on the node, or ask for less: kubectl -n %s edit pvc %s", c.Namespace, c.Name), "the volume has %s, and cannot grow to %s: %s", has.String(), wanted.String(), plain(afterLast(message, "desc = ")))
		}},
		{"claim-full", func(w *world, c *corev1.PersistentVolumeClaim) *finding { return full(w, c, 99) }},
		{"claim-nearly-full", func(w *world, c *corev1.PersistentVolumeClaim) *finding {
			f := full(w, c, 90)
			if f != nil {
				f.mild = true
			}
			return f
		}},
	}, passed: func(_ *world, c *corev1.PersistentVolumeClaim) string {
		has := c.Status.Capacity[corev1.ResourceStorage]
		return "it has " + has.String()
	}},
}

// full returns a finding if at least a share of a claim's volume is in use, in percent. Room for files counts, too.
func full(w *world, c *corev1.PersistentVolumeClaim, share uint64) *finding {
	for _, pod := range usersOf(w, c) {
		v := w.volumeStats(&pod, c.Name)
		if v == nil {
			continue
		}
		for _, of := range []struct {
			what      string
			free, all *uint64
		}{{"room", v.AvailableBytes, v.CapacityBytes}, {"number of files", v.InodesFree, v.Inodes}} {
			free, all := ptr.Deref(of.free, 0), ptr.Deref(of.all, 0)
			if all == 0 || free > all || 100*(all-free)/all < share {
				continue
			}
			return found(fmt.Sprintf("delete files in it, or make it larger: kubectl -n %s edit pvc %s", c.Namespace, c.Name), "%d %% of the volume's %s is in use. The pod %s uses it", 100*(all-free)/all, of.what, pod.Name)
		}
	}
	return nil
}

// binding says why a claim has no volume.
var binding = []rule[*corev1.PersistentVolumeClaim]{
	{"claim-lost", func(_ *world, c *corev1.PersistentVolumeClaim) *finding {
		if c.Status.Phase != corev1.ClaimLost {
			return nil
		}
		return found(fmt.Sprintf("restore the data from a backup into a new claim. Delete this claim: kubectl -n %s delete pvc %s", c.Namespace, c.Name), "the volume %s of the claim was deleted, and its data with it", c.Spec.VolumeName)
	}},
	{"no-default-class", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		if c.Spec.StorageClassName != nil {
			return nil
		}
		classes, ok := storageClasses(w)
		if !ok || slices.ContainsFunc(classes, isDefaultClass) {
			return nil
		}
		return found("give the claim one of these classes as storageClassName (kubectl get storageclass), or make one the default: kubectl annotate storageclass NAME storageclass.kubernetes.io/is-default-class=true", "the claim names no StorageClass, and none is the default")
	})},
	{"class-missing", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		classes, ok := storageClasses(w)
		name := className(c)
		if !ok || name == "" || slices.ContainsFunc(classes, func(s storagev1.StorageClass) bool { return s.Name == name }) {
			return nil
		}
		var has []string
		for _, s := range classes {
			has = append(has, s.Name)
		}
		return found("delete the claim, and create it again with the storageClassName of a class that exists", "there is no StorageClass %s. The cluster has %s", name, cmp.Or(few(has), "none"))
	})},
	{"no-volume-fits", unbound(func(_ *world, c *corev1.PersistentVolumeClaim) *finding {
		if c.Spec.StorageClassName == nil || *c.Spec.StorageClassName != "" {
			return nil
		}
		return found("create a PersistentVolume without a storageClassName that has the size and the access modes of the claim. To have a volume made, create the claim again without storageClassName", `the claim has storageClassName: "", so no volume is made for it, and no PersistentVolume fits`)
	})},
	{"access-mode", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		class := classOf(w, c)
		if class == nil || !localstorage.Provisions(class.Provisioner) {
			return nil
		}
		for _, mode := range c.Spec.AccessModes {
			if mode == corev1.ReadWriteMany || mode == corev1.ReadOnlyMany {
				return found("create the claim again with accessModes: [ReadWriteOnce], or with a StorageClass whose storage several nodes can use: see docs/volumes.md", "the StorageClass %s makes volumes that one node has, and the claim asks for %s", class.Name, mode)
			}
		}
		return nil
	})},
	{"no-pod-yet", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		class := classOf(w, c)
		if class == nil || class.VolumeBindingMode == nil || *class.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer || len(usersOf(w, c)) > 0 || w.isHidden("pods") {
			return nil
		}
		f := found("create a pod that uses the claim", "no pod uses the claim, and the StorageClass %s makes a volume only when a pod needs it", class.Name)
		f.mild = true
		return f
	})},
	{"provisioning-failed", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		e := w.warning(c, "ProvisioningFailed", "FailedBinding", "NoNodeForClaim")
		if e == nil {
			return nil
		}
		return found(fmt.Sprintf("correct the claim or its StorageClass (see docs/volumes.md), or delete the claim and create it again: kubectl -n %s delete pvc %s", c.Namespace, c.Name), "no volume can be made for the claim: %s", plain(withoutCodes(e.Message)))
	})},
	{"provisioner-silent", unbound(func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		class := classOf(w, c)
		if class == nil || localstorage.Provisions(class.Provisioner) || waitsForNode(class, c) || len(usersOf(w, c)) == 0 || w.Now().Sub(c.CreationTimestamp.Time).Minutes() < 1 {
			return nil
		}
		return found("see whether the pods of that provisioner run: kubectl get pods -A", "the provisioner %s of the StorageClass %s has not answered for %s", class.Provisioner, class.Name, since(w, c.CreationTimestamp.Time))
	})},
}

// waitsForNode tells whether the scheduler has to choose a node before a volume is made.
func waitsForNode(class *storagev1.StorageClass, c *corev1.PersistentVolumeClaim) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer && c.Annotations[localstorage.NodeAnnotation] == ""
}

// unbound applies a rule to claims that have no volume.
func unbound(find func(*world, *corev1.PersistentVolumeClaim) *finding) func(*world, *corev1.PersistentVolumeClaim) *finding {
	return func(w *world, c *corev1.PersistentVolumeClaim) *finding {
		if c.Status.Phase == corev1.ClaimBound || c.Status.Phase == corev1.ClaimLost {
			return nil
		}
		return find(w, c)
	}
}

// resizeFault returns why a claim does not grow, or "".
func resizeFault(w *world, c *corev1.PersistentVolumeClaim) string {
	for _, condition := range c.Status.Conditions {
		if (condition.Type == corev1.PersistentVolumeClaimNodeResizeError || condition.Type == corev1.PersistentVolumeClaimControllerResizeError) && condition.Status == corev1.ConditionTrue {
			return condition.Message
		}
	}
	if e := w.warning(c, "VolumeResizeFailed", "FileSystemResizeFailed"); e != nil {
		return e.Message
	}
	return ""
}

// nodeOfVolume returns the node that has the data of a claim, or "" if no node has them.
func nodeOfVolume(w *world, c *corev1.PersistentVolumeClaim) string {
	if c.Spec.VolumeName == "" {
		return ""
	}
	v, ok := get(w, w.Kubernetes.CoreV1().PersistentVolumes(), "volumes", "", c.Spec.VolumeName)
	if !ok {
		return ""
	}
	name, _ := localstorage.NodeOf(v)
	return name
}

func claim(w *world, namespace, name string) (*corev1.PersistentVolumeClaim, bool) {
	return get(w, w.Kubernetes.CoreV1().PersistentVolumeClaims(namespace), "claims", namespace, name)
}

func storageClasses(w *world) ([]storagev1.StorageClass, bool) {
	all, ok := list(w, w.Kubernetes.StorageV1().StorageClasses(), "StorageClasses", "")
	if !ok {
		return nil, false
	}
	return all.Items, true
}

func isDefaultClass(s storagev1.StorageClass) bool {
	return s.Annotations["storageclass.kubernetes.io/is-default-class"] == "true"
}

// className returns the class that a claim names, or "".
func className(c *corev1.PersistentVolumeClaim) string {
	if c.Spec.StorageClassName == nil {
		return ""
	}
	return *c.Spec.StorageClassName
}

// classOf returns the class of a claim, or nil if that is not known.
func classOf(w *world, c *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if c.Spec.StorageClassName != nil && *c.Spec.StorageClassName == "" {
		return nil // it wants a volume without a class
	}
	classes, _ := storageClasses(w)
	for i := range classes {
		if name := className(c); classes[i].Name == name || name == "" && isDefaultClass(classes[i]) {
			return &classes[i]
		}
	}
	return nil
}

// usersOf returns the pods that use a claim.
func usersOf(w *world, c *corev1.PersistentVolumeClaim) (pods []corev1.Pod) {
	all := podsOf(w, c.Namespace)
	for i := range all {
		if !finished(&all[i]) && slices.Contains(claimsOf(&all[i]), c.Name) {
			pods = append(pods, all[i])
		}
	}
	return pods
}

// podsOf returns the pods of a namespace.
func podsOf(w *world, namespace string) []corev1.Pod {
	all, ok := list(w, w.Kubernetes.CoreV1().Pods(namespace), "pods", namespace)
	if !ok {
		return nil
	}
	return all.Items
}
