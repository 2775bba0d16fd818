"""A sweep and its sum, written in Python with Hera and submitted through the kubeconfig that `hpk up` wrote.

pip install hera kubernetes
python sweep.py
"""

import os

import kubernetes
from hera.workflows import DAG, Workflow, script

IMAGE = os.environ.get("IMAGE", "python:3")


@script(image=IMAGE)
def square(number: int) -> None:
    """Runs as one Slurm job for each number."""
    print(number**2)


@script(image=IMAGE)
def total(squares: list) -> None:
    """Runs after the last of them."""
    print(sum(int(one) for one in squares))


with Workflow(generate_name="sweep-", entrypoint="sweep") as workflow, DAG(name="sweep"):
    each = square(arguments={"number": "{{item}}"}, with_items=[1, 2, 3, 4])
    each >> total(arguments={"squares": each.result})

kubernetes.config.load_kube_config()
api = kubernetes.client.CustomObjectsApi()
namespace = os.environ.get("NAMESPACE", "default")
created = api.create_namespaced_custom_object("argoproj.io", "v1alpha1", namespace, "workflows", workflow.to_dict())
print(created["metadata"]["name"])
