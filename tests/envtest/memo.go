// Package envtest is a small project with controller-runtime, as users have them: a kind, a controller and a
// webhook. Its tests use envtest, and know nothing of kedge.
package envtest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Memo is a text that the controller copies to a ConfigMap.
type Memo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              MemoSpec   `json:"spec"`
	Status            MemoStatus `json:"status"`
}

// MemoSpec is what the user wants.
type MemoSpec struct {
	Text string `json:"text"`
}

// MemoStatus is what the controller has done.
type MemoStatus struct {
	Copied bool `json:"copied,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (m *Memo) DeepCopyObject() runtime.Object {
	another := *m
	m.ObjectMeta.DeepCopyInto(&another.ObjectMeta)
	return &another
}

// MemoList is a list of Memos.
type MemoList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Memo `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *MemoList) DeepCopyObject() runtime.Object {
	another := &MemoList{TypeMeta: l.TypeMeta}
	l.ListMeta.DeepCopyInto(&another.ListMeta)
	for i := range l.Items {
		another.Items = append(another.Items, *l.Items[i].DeepCopyObject().(*Memo))
	}
	return another
}

// AddToScheme makes the kind known.
func AddToScheme(scheme *runtime.Scheme) error {
	version := schema.GroupVersion{Group: "test.kedge.dev", Version: "v1"}
	scheme.AddKnownTypes(version, &Memo{}, &MemoList{})
	metav1.AddToGroupVersion(scheme, version)
	return nil
}
